"""The worker: jobs in, results out, as JSON lines. Needs Python and torch alone.

Each input line is a `records.Job`; each output line a `records.Result` or `records.Progress` (key `type`).
A job that is queued behind another has its build started at once, so that compilers run while the
device is measuring.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from typing import TextIO

from kernelpro.lab.sandbox.cell import SandboxLauncher, harden_parent
from kernelpro.records import Job, Record, Result

_PATIENCE = 20.0
"""Seconds that an orphan has to tidy up."""
_LOOK_SECONDS = 0.2
DEVICE_FAILED = 75
"""Exit code of a worker whose device failed its health check."""


def serve(lines: TextIO, output: TextIO, sandbox: str = "auto") -> None:
    """Read jobs until the input ends; answer each. A line that is no job is answered with an error."""
    if importlib.util.find_spec("torch") is None:
        return _refuse(lines, output)
    harden_parent()
    nursery = SandboxLauncher(sandbox)  # imports torch in its own process while this one does
    from kernelpro.lab.jobs import Worker

    lock = threading.Lock()

    def tell(record: Record) -> None:
        line = json.dumps({"type": type(record).__name__.lower(), **record.to_json()}, separators=(",", ":"))
        with lock:
            output.write(line + "\n")
            output.flush()

    worker = Worker(nursery, tell)
    jobs: queue.Queue[Job | None] = queue.Queue()

    def read() -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                job = Job.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                tell(Result("", error=f"a line is no job: {type(error).__name__}: {error}"))
                continue
            worker.announce(job)
            jobs.put(job)
        jobs.put(None)
        while not _orphaned():  # who dies closes its pipes first, and has its children adopted then
            time.sleep(_LOOK_SECONDS)
        signal.pthread_kill(
            threading.main_thread().ident or 0, signal.SIGTERM
        )  # whatever it waits for: nobody reads its results
        time.sleep(_PATIENCE)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (job := jobs.get()) is not None:
            tell(worker.run(job))
    finally:
        worker.close()
        nursery.close()


def _refuse(lines: TextIO, output: TextIO) -> None:
    reason = f"{sys.executable} has no torch: install it there (pip install torch), or run kernelpro with a Python that has it"
    for line in lines:
        job = json.loads(line).get("id", "")
        output.write(json.dumps({"type": "result", **Result(job, error=reason).to_json()}) + "\n")
        output.flush()


def _orphaned() -> bool:
    """Whether the process that started us has died, where it said who it is."""
    parent = os.environ.get("KERNELPRO_PARENT")
    return parent is not None and os.getppid() != int(parent)


def main() -> None:
    """Entry point for hosts where only Python and torch are installed: python -m kernelpro.lab.worker"""
    os.environ["ONEDNN_JIT_PROFILE"] = "0"  # it would leave a list of what it compiled in /tmp
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that cells and scratch are cleaned up
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with results
    from kernelpro.lab.sandbox.health import Sick
    from kernelpro.lab.tasks import paths

    paths.use()
    try:
        serve(sys.stdin, output, os.environ.get("KERNELPRO_SANDBOX", "auto"))
    except Sick as reason:
        print(f"kernelpro worker: {reason}", file=sys.stderr)
        sys.exit(DEVICE_FAILED)
    except BrokenPipeError:  # nobody is left to read the results
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # what is still to be written goes nowhere
    finally:
        if _orphaned():  # whoever made our folder cannot clear it away any more
            shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


if __name__ == "__main__":
    main()
