"""`kernelpro profile`: the diagnosis in words, or as JSON; the evidence and a picture on request."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
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
    sandbox: Any


def run(task_path: str, path: str, target: Any, precision: Any, mode: Any, wanted: Wanted, place: Place) -> int:
    candidate = Candidate.from_file(path)
    options = Options(sandbox=wanted.sandbox)
    request = Request(
        Task.from_file(task_path, mode, precision), candidate, target, options, wanted.compare, wanted.tracer, wanted.everything
    )
    toolbox = registry(map(Path, wanted.tools))
    console = Console(stderr=True)
    quiet = wanted.json_lines or not console.is_terminal
    with place.open(wanted.sandbox) as where, console.status("starting") as status:
        if quiet:
            status.stop()

        async def ask(job: Job) -> Result:
            return await asyncio.wrap_future(where.submit(job, lambda step: _show(status, step)))

        found, diagnosis = asyncio.run(profile(ask, request, toolbox, TrackRecord.load()))
    if wanted.plot:
        _write(
            Path(wanted.plot), roofline.svg(diagnosis.roofline, f"{request.task.name}: {candidate.name} on {found.device['name']}")
        )
    if wanted.json_lines:
        print(json.dumps(as_json(found, diagnosis, wanted.raw), separators=(",", ":")))
    else:
        print(as_text(found, diagnosis, wanted.raw), end="")
    return 0


def _show(status: Any, step: Progress) -> None:
    status.update(step.stage)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--plot {path}: cannot be written ({error.strerror})") from None


def as_json(found: Profile, diagnosis: Diagnosis, raw: bool) -> dict[str, Any]:
    data = diagnosis.to_json()
    shown = {"class": data.pop("bound"), **data, "guidance": guidance.write(diagnosis), "seconds": found.seconds}
    return shown | {"profile": found.to_json()} if raw else shown


def as_text(found: Profile, diagnosis: Diagnosis, raw: bool) -> str:
    parts = [guidance.write(diagnosis)]
    if raw:
        parts.append(evidence.write(found).rstrip())
    elif diagnosis.skipped:
        notes = [f"{s.what}: {s.why}" + (f"; to enable it, {s.enable}" if s.enable else "") for s in diagnosis.skipped]
        parts.append("Not looked at:\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"
