"""`kernelpro profile`: the diagnosis in words, or as JSON; the evidence and a picture on request."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelpro.cli.place import Place
from kernelpro.diagnose import evidence, guidance
from kernelpro.diagnose.record import TrackRecord
from kernelpro.diagnose.tools import registry
from kernelpro.engine.profiling import Request, profile
from kernelpro.records import BadInput, Candidate, Diagnosis, Job, Options, Profile, Progress, Result, Task
from kernelpro.report import roofline


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for beyond the diagnosis."""

    raw: bool
    json_lines: bool
    plot: str | None
    compare: tuple[str, ...]
    tools: tuple[str, ...]
    tracer: str
    everything: bool
    energy: bool
    sandbox: Any


def run(
    task_path: str, path: str, target: Any, precision: Any, mode: Any, wanted: Wanted, place: Place
) -> int:
    candidate = Candidate.from_file(path)
    options = Options(sandbox=wanted.sandbox)
    request = Request(
        task=Task.from_file(task_path, mode, precision),
        candidate=candidate,
        target=target,
        options=options,
        references=wanted.compare,
        tracer=wanted.tracer,
        all_counters=wanted.everything,
        energy=wanted.energy,
    )
    toolbox, record = registry(map(Path, wanted.tools)), TrackRecord.load()
    if wanted.plot:
        _check_plot(Path(wanted.plot))
    console = Console(stderr=True)
    quiet = wanted.json_lines or not console.is_terminal
    with place.open(wanted.sandbox) as where, console.status("starting") as status:
        if quiet:
            status.stop()

        async def ask(job: Job) -> Result:
            return await asyncio.wrap_future(where.submit(job, lambda step: _show(status, step)))

        found, diagnosis = asyncio.run(profile(ask, request, toolbox, record))
    if wanted.plot:
        _write(
            Path(wanted.plot),
            roofline.svg(
                diagnosis.roofline, f"{request.task.name}: {candidate.name} on {found.device['name']}"
            ),
        )
    if wanted.json_lines:
        print(json.dumps(as_json(found, diagnosis, wanted.raw), separators=(",", ":")))
    else:
        print(as_text(found, diagnosis, wanted.raw), end="")
    return 0


def _show(status: Any, step: Progress) -> None:
    status.update(step.stage)


def _check_plot(path: Path) -> None:
    """Before anything is measured: can the picture be written there?"""
    if path.suffix.lower() != ".svg":
        raise BadInput(f"--plot {path}: the picture is SVG; name a file that ends in .svg")
    if not path.parent.is_dir():
        raise BadInput(f"--plot {path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"--plot {path}: cannot be written")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--plot {path}: cannot be written ({error.strerror})") from None


def as_json(found: Profile, diagnosis: Diagnosis, raw: bool) -> dict[str, Any]:
    data = diagnosis.to_json()
    shown = {
        "class": data.pop("bound"),
        **data,
        "guidance": guidance.write(diagnosis),
        "seconds": found.seconds,
    }
    return shown | {"profile": found.to_json()} if raw else shown


def as_text(found: Profile, diagnosis: Diagnosis, raw: bool) -> str:
    parts = [guidance.write(diagnosis)]
    if raw:
        parts.append(evidence.write(replace(found, skipped=())).rstrip())
    if diagnosis.skipped:
        notes = [
            f"{s.what}: {s.why}" + (f"; to enable it, {s.enable}" if s.enable else "")
            for s in diagnosis.skipped
        ]
        parts.append("Not looked at:\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"
