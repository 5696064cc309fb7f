"""`kernelpro judge`: its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import (
    MEASUREMENT,
    BaselineOptions,
    JsonOptions,
    JudgeEffortOptions,
    PoolOptions,
    ShapeOptions,
    TaskArgument,
    TaskOptions,
    TimeoutOptions,
    add_command,
    option,
)
from kernelpro.records import Options


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(
    JsonOptions, PoolOptions, BaselineOptions, JudgeEffortOptions, TimeoutOptions, TaskOptions, ShapeOptions
):
    """Options of `kernelpro judge`."""

    task: TaskArgument
    candidates: Annotated[
        list[str], typer.Argument(metavar="CANDIDATE", help="Python files, each with a class ModelNew.")
    ]
    disable_tripwire: Annotated[
        list[str],
        option(
            "Disable a tripwire (a check of the source) by name, or all of them with `all`. Repeatable.",
            MEASUREMENT,
            metavar="NAME",
        ),
    ] = field(default_factory=list)
    memory: Annotated[
        float,
        option(
            "GiB of host memory that a candidate may use; 0: three quarters of the machine's.",
            MEASUREMENT,
            min=0,
        ),
    ] = Options.memory_gib
    energy: Annotated[
        bool,
        option(
            "Also compare the energy of a call with the fastest baseline's (takes 30 s more).",
            MEASUREMENT,
            "--energy",
        ),
    ] = False


@add_command(app, JudgeOptions)
def judge(options: JudgeOptions) -> int:
    """Verify kernels against the task's reference and measure their speed-up.

    Exit code 0: all passed; 1: not all passed; 2: misuse; 3: results outstanding; 4: a bug of KernelPro.
    """
    from kernelpro.cli.judge import judge_candidates

    return judge_candidates(options)
