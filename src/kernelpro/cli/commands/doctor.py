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
            "--energy",
            help="Instead, calibrate the energy counter and print its resolution, latency and repeatability.",
        ),
    ] = False
    target: Annotated[
        Target | None, typer.Option(help="With --energy: the device; default: the GPU if there is one.")
    ] = None


@add_command(app, DoctorOptions)
def doctor(options: DoctorOptions) -> int:
    """Report what this machine supports, and how to enable what is missing.

    Exit code 1 with --energy: there is no energy counter.
    """
    from kernelpro.cli.doctor import calibrate_energy, check_machine

    return calibrate_energy(options) if options.energy else check_machine(options)
