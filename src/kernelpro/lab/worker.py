"""The worker process: reads jobs and writes results as JSON lines. Needs only Python and torch.

Each input line is a `records.Job`; each output line is a `records.Result` or `records.Progress` (key `type`).
The build of a queued job starts at once, so that compilers run while the device measures. A `compile` job
only starts a build, of candidates or of a reference; its result, if it has one, follows when it is ready.

A pool starts the worker with the argument `SHARED_IMPORT` and the variables of `start_environment`, and
sends its own environment as the first line of input. The worker imports torch, forks the zygote (the process
that starts sandboxes), and only then reads that line. So both share one import of torch, and no sandbox can
find an API key in its memory.
"""

from __future__ import annotations

import atexit
import gc
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

from kernelpro.lab import garbage
from kernelpro.lab.sandbox.launcher import SandboxLauncher, clean_environment
from kernelpro.lab.sandbox.process import harden_parent
from kernelpro.records import Job, Record, Result
from kernelpro.records.base import describe_bug

_ORPHAN_CLEANUP_SECONDS = 20.0
"""Seconds in which a worker whose parent died must clean up before it kills itself."""
_POLL_SECONDS = 0.2
DEVICE_FAILED = 75
"""Exit code of a worker whose device failed its health check."""
SHARED_IMPORT = "--environment-on-stdin"
"""The argument with which a pool starts a worker; see above."""


def start_environment(environment: dict[str, str], package_root: str) -> dict[str, str]:
    """The initial environment of such a worker: variables that a sandbox may see.

    Unlike a sandbox, the worker writes bytecode: no other process imports all of the lab.
    """
    bytecode = "PYTHONDONTWRITEBYTECODE"
    plain = [name for name in ("TMPDIR", "KERNELPRO_SANDBOX", bytecode) if name in environment]
    clean = clean_environment(environment) | {"PYTHONPATH": package_root}
    del clean[bytecode]
    return clean | {name: environment[name] for name in plain}


def _start_with_shared_import(lines: TextIO) -> SandboxLauncher | None:
    """Fork the zygote, then adopt the environment of the pool."""
    launcher = None
    if importlib.util.find_spec("torch"):
        launcher = SandboxLauncher(os.environ.get("KERNELPRO_SANDBOX", "auto"), fork=True)
    line = lines.readline()  # empty: the pool died before it wrote it
    environment = json.loads(line) if line else os.environ | {"KERNELPRO_PARENT": "0"}
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[2:2] = [folder for folder in folders if folder and folder not in sys.path]
    os.environ.clear()
    os.environ.update(environment)
    return launcher


def serve(
    lines: TextIO, output: TextIO, sandbox: str = "auto", launcher: SandboxLauncher | None = None
) -> None:
    """Run jobs until the input ends. A line that is not a job gets an error result."""
    if importlib.util.find_spec("torch") is None:
        return _serve_without_torch(lines, output)
    harden_parent()
    # without a launcher, the zygote is a new process that imports torch while this one does
    launcher = launcher or SandboxLauncher(sandbox)
    from kernelpro.lab.jobs import JobRunner
    from kernelpro.lab.sandbox.health import DeviceUnhealthy

    garbage.exclude_imported()
    lock = threading.Lock()

    def write(record: Record) -> None:
        line = json.dumps({"type": type(record).__name__.lower(), **record.to_json()}, separators=(",", ":"))
        with lock:
            output.write(line + "\n")
            output.flush()

    worker = JobRunner(launcher, write)
    jobs: queue.Queue[Job | None] = queue.Queue()

    def read() -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                job = Job.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                write(Result("", error=f"a line is not a job: {type(error).__name__}: {error}"))
                continue
            worker.prebuild(job)
            if job.kind != "compile":
                jobs.put(job)
        jobs.put(None)
        while not _orphaned():  # a dying parent closes its pipes before its children are reparented
            time.sleep(_POLL_SECONDS)
        signal.pthread_kill(
            threading.main_thread().ident or 0, signal.SIGTERM
        )  # no process reads its results
        time.sleep(_ORPHAN_CLEANUP_SECONDS)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (job := jobs.get()) is not None:
            try:
                write(worker.run(job))
            except (DeviceUnhealthy, BrokenPipeError):
                raise
            except Exception as error:  # a bug; the pool starts another worker
                write(Result(job.id, error=describe_bug(error), internal_error=True))
                raise
    finally:
        worker.close()
        launcher.close()


def _serve_without_torch(lines: TextIO, output: TextIO) -> None:
    reason = f"{sys.executable} has no torch: install it (pip install torch), or use a Python that has it"
    for line in lines:
        job = json.loads(line).get("id", "")
        output.write(json.dumps({"type": "result", **Result(job, error=reason).to_json()}) + "\n")
        output.flush()


def _orphaned() -> bool:
    """Whether the parent process, if known, has died."""
    parent = os.environ.get("KERNELPRO_PARENT")
    return parent is not None and os.getppid() != int(parent)


class Terminated(BaseException):
    """Raised by SIGTERM. It is not a SystemExit: tasks may raise that, which is reported as their error."""


def _terminate(*_: object) -> None:
    raise Terminated


def main() -> None:
    """Entry point for hosts where only Python and torch are installed: python -m kernelpro.lab.worker"""
    signal.signal(signal.SIGTERM, _terminate)  # so that sandboxes and temporary files are cleaned up
    try:
        _serve_stdin()
    except Terminated:
        sys.exit(143)


def _serve_stdin() -> None:
    gc.disable()  # until torch is imported
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with results
    launcher = _start_with_shared_import(sys.stdin) if sys.argv[1:] == [SHARED_IMPORT] else None
    os.environ["ONEDNN_JIT_PROFILE"] = "0"  # oneDNN would leave a list of compiled kernels in /tmp
    from kernelpro.lab.sandbox.health import DeviceUnhealthy
    from kernelpro.lab.tasks import paths

    paths.extend_sys_path()
    try:
        serve(sys.stdin, output, os.environ.get("KERNELPRO_SANDBOX", "auto"), launcher)
    except DeviceUnhealthy as reason:
        print(f"kernelpro worker: {reason}", file=sys.stderr)
        sys.exit(DEVICE_FAILED)
    except BrokenPipeError:  # the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # discard buffered output
    finally:
        if _orphaned():  # the parent cannot remove our folder any more
            shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    _exit_at_once()


def _exit_at_once() -> None:
    """End this process without destroying every object, which takes half a second once torch is imported."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
