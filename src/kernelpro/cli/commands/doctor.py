"""`kernelpro doctor`: its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import JsonOptions, add_command
from kernelpro.records import Target


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(JsonOptions):
    """Options of `kernelpro doctor`."""

    energy: Annotated[
        bool,
        typer.Option(
            "--energy", help="Calibrate the energy counter instead: resolution, latency, repeatability."
        ),
    ] = False
    target: Annotated[
        Target | None, typer.Option(help="With --energy: cuda or cpu; default: the GPU if there is one.")
    ] = None


@add_command(app, DoctorOptions)
def doctor(options: DoctorOptions) -> int:
    """Report what this machine can do, and how to enable what is missing.

    With --energy, exit code 1: there is no energy counter.
    """
    from kernelpro.cli.doctor import calibrate_energy, check_machine

    return calibrate_energy(options) if options.energy else check_machine(options)
