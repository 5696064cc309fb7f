"""`kernelpro profile`: its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import (
    MEASUREMENT,
    OUTPUT,
    BaselineChoice,
    JsonOptions,
    PoolOptions,
    ShapeOptions,
    TaskArgument,
    TaskOptions,
    TimeoutOptions,
    add_command,
    option,
)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(JsonOptions, PoolOptions, TimeoutOptions, TaskOptions, ShapeOptions):
    """Options of `kernelpro profile`."""

    task: TaskArgument
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="A Python file with a class ModelNew.")
    ]
    compare: Annotated[
        list[BaselineChoice], option("Also profile this baseline. Repeatable.", MEASUREMENT)
    ] = field(default_factory=list)
    diagnostic: Annotated[
        list[str],
        option("Add a diagnostic of your own: a Python file. Repeatable.", MEASUREMENT, metavar="FILE"),
    ] = field(default_factory=list)
    tracer: Annotated[
        Literal["auto", "cupti", "nsys"], option("Source of the timeline; auto is cupti.", MEASUREMENT)
    ] = "auto"
    all_counters: Annotated[
        bool,
        option(
            "Collect the counters of all diagnostics, whatever the bottleneck.", MEASUREMENT, "--all-counters"
        ),
    ] = False
    energy: Annotated[bool, option("Also report what costs energy but no time.", MEASUREMENT, "--energy")] = (
        False
    )
    raw: Annotated[
        bool, option("Also print the evidence: times, kernels, stalls, hottest lines.", OUTPUT, "--raw")
    ] = False
    plot: Annotated[
        str | None,
        option("Write the time account and the roofline to this SVG file.", OUTPUT, metavar="FILE"),
    ] = None


@add_command(app, ProfileOptions)
def profile(options: ProfileOptions) -> int:
    """Explain what limits a kernel and what to do about it, without an LLM.

    It does not check the kernel's outputs; `kernelpro judge` does.
    """
    from kernelpro.cli.profile import profile_candidate

    return profile_candidate(options)
