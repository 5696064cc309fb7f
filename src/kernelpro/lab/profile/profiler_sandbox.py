"""Runs external profilers (ncu, nsys, compute-sanitizer) around a candidate, in a separate sandbox."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.builds import compiler_variables
from kernelpro.lab.sandbox.process import ResourceLimits
from kernelpro.lab.sandbox.wire import ChannelClosed, MalformedMessage, ReplyTimeout
from kernelpro.records import Candidate

BUNDLE = "bundle.pt"
"""The file that `profiled_program` loads."""
_COMMAND_SECONDS = 240.0
_REPLY_SECONDS = 10.0
"""Time for the reply beyond the time limit of the commands."""
_MEMORY_SHARE = 0.75
_SYSCALLS = ("ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open", "timer_create", "socket")
"""System calls that ncu and nsys need to observe their target. They can observe nothing else: the sandbox has
no other processes."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def output(self) -> str:
        """Standard output and standard error."""
        return self.out + self.err


class ProfilerSandbox:
    """Runs external profilers on one candidate."""

    def __init__(self, bench: Bench, candidate: Candidate):
        self._bench, self._candidate = bench, candidate

    def make_bundle(self, references: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return what `profiled_program` loads: the task, the candidate, and variants of the reference."""
        bench = self._bench
        request, tail = bench.loader.request(self._candidate, bench.options)
        # the weights of a live module must be sent; others follow from the seed
        state = bench.loader.saved_state() if bench.task.form == "module" else b""
        candidate = {"request": request, "tail": tail, "state": state}
        load, task = bench.loader.reference_request()
        entries = [candidate, *({"variant": name, "request": load, "tail": task} for name in references)]
        return {"task": bench.task, "seed": bench.seed, "tf32": bench.precision == "tf32", "entries": entries}

    def run(
        self,
        commands: list[list[str]],
        references: tuple[str, ...] = (),
        collect: tuple[str, ...] = (),
        seconds: float = _COMMAND_SECONDS,
    ) -> tuple[list[CommandResult], bytes]:
        """Run commands until one fails, each for at most `seconds`. Returns their results, and a tar of the
        files in `collect`."""
        self._bench.free_own_memory()
        memory = int(_MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        process = self._bench.launcher.start(
            "profile",
            ResourceLimits(memory, address_space=False),
            environment={"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
            | compiler_variables(self._bench.target),
            allowed_syscalls=_SYSCALLS,
            private_tmp=True,  # nsys writes to /tmp, whatever TMPDIR is
        )
        try:
            request = {"op": "execute", "commands": commands, "seconds": seconds, "collect": collect}
            process.channel.send(request, self._pack_bundle(references))
            answer, files = process.channel.receive(len(commands) * seconds + _REPLY_SECONDS)
            return parse_results(answer), files
        except (ChannelClosed, ReplyTimeout, MalformedMessage) as error:
            return [CommandResult(1, err=f"the sandboxed process was lost: {type(error).__name__}")], b""
        finally:
            process.kill()

    def _pack_bundle(self, references: tuple[str, ...]) -> bytes:
        data, archive = io.BytesIO(), io.BytesIO()
        torch.save([self.make_bundle(references)], data)
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo(BUNDLE)
            member.size = data.tell()
            tar.addfile(member, io.BytesIO(data.getvalue()))
        return archive.getvalue()


def parse_results(answer: dict[str, Any]) -> list[CommandResult]:
    """Parse the reply to `execute`. A candidate ran in that process and may have forged it."""
    rows = answer.get("results")
    types = {"code": int, "out": str, "err": str}
    if (
        rows
        and isinstance(rows, list)
        and all(
            isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in types.items())
            for row in rows
        )
    ):
        return [CommandResult(**{key: row[key] for key in types}) for row in rows]
    return [CommandResult(1, err=str(answer.get("error")))]
