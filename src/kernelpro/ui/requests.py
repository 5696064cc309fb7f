"""Requests of the page: they are checked and stored as events of the run. `resume` also starts a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelpro.engine.steering import has_requests
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, RunConfig
from kernelpro.records.events import (
    BranchClosed,
    BranchOpened,
    BudgetAdded,
    HintGiven,
    HintWithdrawn,
    KernelPasted,
    NodePinned,
    ProfileRequested,
    ResumeRequested,
    SteeringEvent,
    StopRequested,
)

_MAX_HINT = 4000
_MAX_SOURCE = 2**20
_LOG = "resume.log"
"""The file with the output of a resumed run, in the run's folder."""
_ERROR_LINES = 3


def store_request(store: RunStore, data: dict[str, Any]) -> int:
    """Check a request, store it, and return the id of its event. Raises BadInput if it is invalid."""
    kind = str(data.get("kind", ""))
    make = _MAKERS.get(kind)
    if make is None:
        raise BadInput(f"unknown request {kind!r}")
    return store.add_event(make(store, data))


def _stop(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    if store.state() != "running":
        raise BadInput("no process is working on this run")
    return StopRequested(bool(data.get("finish")))


def _add_budget(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    limits = store.config().limits
    amounts: dict[str, float] = {}
    for name in ("candidates", "dollars", "tokens", "wall_seconds", "device_seconds"):
        amount = _number(data, name)
        if amount and not getattr(limits, name):
            raise BadInput(f"this run has no limit on {name.replace('_', ' ')} that could be raised")
        amounts[name] = int(amount) if name in ("candidates", "tokens") else amount
    if not any(amounts.values()):
        raise BadInput("no amount to add was given")
    return BudgetAdded(**amounts)  # type: ignore[arg-type]


def _number(data: dict[str, Any], name: str) -> float:
    value = data.get(name) or 0
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise BadInput(f"{name.replace('_', ' ')}: {value!r} is not an amount")
    return float(value)


def _step(store: RunStore, data: dict[str, Any], allow_root: bool = False) -> int:
    number = data.get("step")
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadInput("the number of the step is missing")
    if number == 0 and allow_root:
        return 0
    step = store.step(number)
    if step is None:
        raise BadInput(f"there is no step {number}")
    if step.stage != "settled":
        raise BadInput(f"step {number} is not finished yet")
    return number


def _pin(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    return NodePinned(_step(store, data, allow_root=True))


def _close(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    return BranchClosed(_step(store, data))


def _open(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    return BranchOpened(_step(store, data))


def _hint(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    text = str(data.get("text", "")).strip()
    if not text:
        raise BadInput("the hint is empty")
    if len(text) > _MAX_HINT:
        raise BadInput(f"the hint is longer than {_MAX_HINT} characters")
    return HintGiven(text)


def _withdraw_hint(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    hint = data.get("hint")
    if not isinstance(hint, int):
        raise BadInput("the id of the hint is missing")
    return HintWithdrawn(hint)


def _paste(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    source = str(data.get("source", ""))
    if not source.strip():
        raise BadInput("the kernel is empty")
    if len(source) > _MAX_SOURCE:
        raise BadInput("the kernel is larger than 1 MiB")
    try:
        compile(source, "kernel.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise BadInput(f"the kernel is not Python: {where}") from None
    if "class ModelNew" not in source:
        raise BadInput("the kernel defines no class ModelNew")
    parent = _step(store, {"step": data.get("parent", 0)}, allow_root=True)
    return KernelPasted(store.save_source(source), parent, str(data.get("note", "")).strip()[:500])


def _profile(store: RunStore, data: dict[str, Any]) -> SteeringEvent:
    number = _step(store, data)
    step = store.step(number)
    if step is None or step.ms is None:
        raise BadInput(f"step {number} did not pass: there is nothing to profile")
    if step.diagnosis or step.details.profile_error:
        raise BadInput(f"step {number} has already been profiled")
    return ProfileRequested(number)


_MAKERS: dict[str, Callable[[RunStore, dict[str, Any]], SteeringEvent]] = {
    "stop": _stop,
    "add_budget": _add_budget,
    "pin": _pin,
    "close": _close,
    "open": _open,
    "hint": _hint,
    "withdraw_hint": _withdraw_hint,
    "paste": _paste,
    "profile": _profile,
}


@dataclass
class ResumedRuns:
    """The processes that this server started with `kernelpro resume`. They continue if the server ends."""

    _processes: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)

    def resume(self, store: RunStore) -> int:
        """Continue a run in a new process. Returns the id of the event. Raises BadInput if it is running."""
        if store.state() == "running" or self._is_starting(store.folder):
            raise BadInput("a process is already working on this run")
        if store.is_finished and not has_requests(store):
            raise BadInput("the run is finished: add budget or paste a kernel, then resume it")
        _require_files(store.config())
        event = store.add_event(ResumeRequested())
        command = [sys.executable, "-m", "kernelpro", "resume", store.id]
        command += ["--runs-dir", str(store.folder.parent.resolve())]
        with (store.folder / _LOG).open("wb") as log:
            self._processes[store.folder] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return event

    def _is_starting(self, folder: Path) -> bool:
        process = self._processes.get(folder)
        return process is not None and process.poll() is None

    def status(self, folder: Path) -> dict[str, Any]:
        """Whether the process of a run is starting, and the end of its output if it failed."""
        process = self._processes.get(folder)
        if process is None:
            return {"starting": False, "error": ""}
        code = process.poll()
        if code is None or code in (0, 1, 3, 130):  # it runs, ended, waits for answers, or was stopped
            return {"starting": code is None, "error": ""}
        try:
            lines = (folder / _LOG).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        error = "\n".join(lines[-_ERROR_LINES:]) if code > 0 else f"the process was killed by signal {-code}"
        return {"starting": False, "error": error}


def _require_files(config: RunConfig) -> None:
    """Raise BadInput if the author's files are missing, so that no process starts only to fail."""
    kind, _, path = config.author.partition(":")
    if kind == "files" and not Path(path).is_dir():
        raise BadInput(f"the author's folder of files no longer exists: {path}")
