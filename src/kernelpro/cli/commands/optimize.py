"""`kernelpro optimize` and `kernelpro resume`: their options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import (
    MODEL,
    OUTPUT,
    SEARCH,
    WHERE,
    BudgetOptions,
    JsonOptions,
    RunArgument,
    RunsDirOptions,
    SearchRunOptions,
    ShapeOptions,
    TaskArgument,
    add_command,
    option,
)


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(JsonOptions, RunsDirOptions, SearchRunOptions, ShapeOptions):
    """Options of `kernelpro optimize`."""

    task: TaskArgument
    no_knowledge: Annotated[
        bool,
        option("Neither use what earlier runs have learned nor add to it.", SEARCH, "--no-knowledge"),
    ] = False
    name: Annotated[str | None, option("Name of the run; default: the name of the task.", OUTPUT)] = None


@add_command(app, OptimizeOptions)
def optimize(options: OptimizeOptions) -> int:
    """Search for a faster kernel for a task.

    Without --model, it uses a provider whose API key is set, else the playbook.
    Ctrl-C stops the search at any time; `kernelpro resume RUN` continues it.
    """
    from kernelpro.cli.optimize import optimize_task

    return optimize_task(options)


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(JsonOptions, RunsDirOptions, BudgetOptions):
    """Options of `kernelpro resume`."""

    run: RunArgument
    price: Annotated[
        list[str],
        option(
            "New price of a model in dollars per million tokens. Repeatable.",
            MODEL,
            metavar="MODEL=INPUT/OUTPUT",
        ),
    ] = field(default_factory=list)
    pool: Annotated[str | None, option("Run jobs in another pool from now on.", WHERE)] = None
    wait: Annotated[
        bool,
        option(
            "Wait for answers (inbox) and results (spool) instead of exiting with code 3.", WHERE, "--wait"
        ),
    ] = False


@add_command(app, ResumeOptions)
def resume(options: ResumeOptions) -> int:
    """Continue a run that was stopped or killed, or a finished run with a larger --budget."""
    from kernelpro.cli.optimize import resume_run

    return resume_run(options)
