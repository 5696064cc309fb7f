"""`kernelpro profile`: the diagnosis in words or as JSON, with evidence and a plot on request."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelpro.cli.commands.profile import ProfileOptions
from kernelpro.cli.output import write_file
from kernelpro.cli.pools import open_pool
from kernelpro.diagnose import evidence, guidance
from kernelpro.diagnose.diagnostics import registry
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.engine.profiling import ProfileSpec, profile
from kernelpro.records import BadInput, Candidate, Diagnosis, Job, Options, Profile, Progress, Result
from kernelpro.report import profile_plot
from kernelpro.tasks import load_task, with_shapes


def profile_candidate(options: ProfileOptions) -> int:
    """Profile a candidate and print the diagnosis; return the exit code."""
    candidate = Candidate.from_file(options.candidate)
    spec = ProfileSpec(
        task=with_shapes(
            load_task(options.task, mode=options.mode, precision=options.precision), options.shape
        ),
        candidate=candidate,
        target=options.target,
        options=Options(
            sandbox=options.sandbox, call_timeout=options.timeout, build_timeout=options.build_timeout
        ),
        references=tuple(name.value for name in options.compare),
        tracer=options.tracer,
        all_counters=options.all_counters,
        energy=options.energy,
    )
    diagnostics, record = registry(map(Path, options.diagnostic)), TrackRecord.load()
    if options.plot:
        _check_plot(Path(options.plot))
    console = Console(stderr=True)
    with open_pool(options) as pool, console.status("starting") as status:
        if options.json or not console.is_terminal:
            status.stop()

        def show_progress(progress: Progress) -> None:
            status.update(progress.stage)

        async def submit(job: Job) -> Result:
            return await asyncio.wrap_future(pool.submit(job, show_progress))

        measured, diagnosis = asyncio.run(profile(submit, spec, diagnostics.values(), record))
    if options.plot:
        title = f"{spec.task.name}: {candidate.name} on {measured.device.name}"
        write_file(options.plot, profile_plot.plot_svg(diagnosis, title), "--plot")
    if options.json:
        print(json.dumps(as_json(measured, diagnosis, options.raw), separators=(",", ":")))
    else:
        print(as_text(measured, diagnosis, options.raw), end="")
    return 0


def _check_plot(path: Path) -> None:
    """Raise BadInput before anything is measured if the plot cannot be written."""
    if path.suffix.lower() != ".svg":
        raise BadInput(f"--plot {path}: plots are SVG: give a file that ends in .svg")
    if not path.parent.is_dir():
        raise BadInput(f"--plot {path}: folder {path.parent} does not exist")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"--plot {path}: cannot be written")


def as_json(measured: Profile, diagnosis: Diagnosis, raw: bool) -> dict[str, Any]:
    """The diagnosis as JSON; with `raw`, the profile as well."""
    data = diagnosis.to_json()
    result = {
        "class": data.pop("bound"),
        **data,
        "guidance": guidance.write(diagnosis),
        "seconds": measured.seconds,
    }
    return result | {"profile": measured.to_json()} if raw else result


def as_text(measured: Profile, diagnosis: Diagnosis, raw: bool) -> str:
    """The diagnosis in words; with `raw`, the evidence as well."""
    parts = [guidance.write(diagnosis)]
    if raw:
        parts.append(evidence.write(replace(measured, skipped=())).rstrip())
    if diagnosis.skipped:
        notes = [
            f"{s.what}: {s.why}" + (f"; to enable it, {s.enable}" if s.enable else "")
            for s in diagnosis.skipped
        ]
        parts.append("Not examined:\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"
