"""`kernelpro worker` and `kernelpro spool`: their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import JsonOptions, add_command

spool_app = typer.Typer(no_args_is_help=True, help="Manage a spool: a folder of jobs for workers elsewhere.")
app.add_typer(spool_app, name="spool")


@dataclass(frozen=True, kw_only=True)
class WorkerArguments:
    """Options of `kernelpro worker`."""

    spool: Annotated[
        str | None,
        typer.Argument(
            metavar="SPOOL", help="A spool folder, or a file of jobs; default: read jobs from stdin."
        ),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Exit when no job is left.")] = False
    time_limit: Annotated[
        float,
        typer.Option(
            min=0,
            help="Exit within this many seconds; jobs that would take longer stay in the spool. 0: no limit.",
        ),
    ] = 0.0
    lease_timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds without a heartbeat after which other workers take its jobs over."),
    ] = 120.0
    gpu_name: Annotated[
        str, typer.Option(help="Use only devices whose name contains this text, such as H200.")
    ] = ""
    pack: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the worker as one file that needs only Python and torch, and exit."
        ),
    ] = None
    sandbox: Annotated[
        Literal["auto", "namespaces", "landlock", "process"],
        typer.Option(help="How to isolate candidates; auto selects the strongest level that works."),
    ] = "auto"


@add_command(app, WorkerArguments)
def worker(options: WorkerArguments) -> int:
    """Run the jobs of a spool or of a file, or jobs from stdin (one line of JSON each)."""
    from kernelpro.cli.spool import run_worker

    return run_worker(
        options.spool,
        once=options.once,
        time_limit=options.time_limit,
        lease_timeout=options.lease_timeout,
        gpu_name=options.gpu_name,
        pack=options.pack,
        sandbox=options.sandbox,
    )


_FolderArgument = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of the spool.")]


@dataclass(frozen=True, kw_only=True)
class SpoolStatusOptions(JsonOptions):
    """Options of `kernelpro spool status`."""

    folder: _FolderArgument


@add_command(spool_app, SpoolStatusOptions)
def status(options: SpoolStatusOptions) -> int:
    """List the open jobs, the worker that runs each, and the number of workers by hardware."""
    from kernelpro.cli.spool import show_status

    return show_status(options.folder, options.json)


@dataclass(frozen=True, kw_only=True)
class SpoolPackOptions:
    """Options of `kernelpro spool pack`."""

    folder: _FolderArgument
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="File to write: all jobs without a result, one per line.")
    ]


@add_command(spool_app, SpoolPackOptions)
def pack(options: SpoolPackOptions) -> int:
    """Write the open jobs to one file, for another machine: `kernelpro worker FILE --once` runs them."""
    from kernelpro.cli.spool import pack_jobs

    return pack_jobs(options.folder, options.out)


@dataclass(frozen=True, kw_only=True)
class SpoolMergeOptions:
    """Options of `kernelpro spool merge`."""

    folder: _FolderArgument
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Files of results, folders of them, or a copy of the spool."),
    ]


@add_command(spool_app, SpoolMergeOptions)
def merge(options: SpoolMergeOptions) -> int:
    """Import results from another machine.

    Exit code 1: some results were rejected; the command lists them.
    """
    from kernelpro.cli.spool import merge_results

    return merge_results(options.folder, options.sources)
