"""`kernelpro bench`: its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import (
    MEASUREMENT,
    OUTPUT,
    SEARCH,
    JudgeEffortOptions,
    SearchRunOptions,
    TimeoutOptions,
    add_command,
    option,
)

PROBLEMS, EVALUATE = "Problems", "What to evaluate"


@dataclass(frozen=True, kw_only=True)
class BenchOptions(JudgeEffortOptions, TimeoutOptions, SearchRunOptions):
    """Options of `kernelpro bench`."""

    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="builtin, kernelbench:PATH, a folder of task files, or kernels:PATH (published kernels).",
        ),
    ]
    list_problems: Annotated[bool, option("List the problems and exit.", EVALUATE, "--list")] = False
    probe: Annotated[
        bool, option("Report which problems can be scored, and why others cannot.", EVALUATE, "--probe")
    ] = False
    kernels: Annotated[
        str | None,
        option(
            "Judge the kernels in a folder: a run of KernelBench, or files named like the tasks.",
            EVALUATE,
            metavar="DIR",
        ),
    ] = None
    level: Annotated[list[int], option("Only this level. Repeatable; default: all.", PROBLEMS)] = field(
        default_factory=list
    )
    ids: Annotated[str, option("Only these problems: 1-20,33 of each level, or 1/1-20,2/33.", PROBLEMS)] = ""
    sample: Annotated[
        int | None,
        option("With --kernels: judge only this sample; default: all, and the best one counts.", PROBLEMS),
    ] = None
    energy: Annotated[
        bool, option("With --kernels: also measure the energy of a call.", MEASUREMENT, "--energy")
    ] = False
    parallel: Annotated[int, option("Number of problems to search at the same time.", SEARCH, min=1)] = 1
    time_limit: Annotated[
        float | None,
        option(
            "Stop this many seconds after the start of the command; repeat it to continue.",
            PROBLEMS,
            metavar="SECONDS",
            min=1,
        ),
    ] = None
    problem_limit: Annotated[
        float | None,
        option(
            "Give up the search of a problem after this many seconds, as of one whose reference never ends.",
            SEARCH,
            metavar="SECONDS",
            min=1,
        ),
    ] = None
    out: Annotated[
        str | None,
        option(
            "Folder of this benchmark; with the same folder, it continues where it stopped.",
            OUTPUT,
            metavar="DIR",
        ),
    ] = None
    retry: Annotated[
        bool, option("Run problems and kernels again that could not be run or judged.", OUTPUT, "--retry")
    ] = False
    format: Annotated[Literal["table", "md", "json"], option("Format of the results.", OUTPUT)] = "table"


@add_command(app, BenchOptions)
def bench(options: BenchOptions) -> int:
    """Evaluate kernels, a model or the playbook on a suite of tasks.

    Give one of --probe, --kernels, --model and --author; kernels:PATH needs none.
    You can stop it at any time; repeat the command to continue.

    Exit code 0: complete; 1: nothing could be run; 2: misuse; 3: results outstanding; 4: a bug of KernelPro.
    """
    from kernelpro.cli.bench import run_bench

    return run_bench(options)
