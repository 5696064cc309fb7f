"""Machine-wide locks: one process at a time on a device, and no compiler while the CPU is timed.

They are flock locks: the kernel releases them when their process ends, however it ends. The lock files remain
on disk; any user may open them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from kernelpro.records import Target
from kernelpro.records.jobs import WAITING_FOR_DEVICE

_FOLDER = Path("/tmp/kernelpro-locks")
"""The same for all users, hence not $TMPDIR, which differs between workers. KERNELPRO_LOCKS sets another
folder, for processes that may measure while others do."""
_REPORT_SECONDS = 5.0


Report = Callable[[str], None]


def lock_name(target: Target) -> str:
    """The name of the lock on the device that this process uses for a target."""
    if target == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


@contextlib.contextmanager
def exclusive(device: str, report: Report) -> Iterator[None]:
    """Hold a device (a GPU's UUID, or `cpu`). `report` is called while it waits."""
    with _locked(device, fcntl.LOCK_EX, report):
        yield


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Run a compiler. Several may run at once, but none while a process measures on the CPU."""
    with _locked("compilers", fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def without_compilers() -> Iterator[None]:
    """Measure on the CPU while no worker runs a compiler."""
    with _locked("compilers", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(name: str, how: int, report: Report = lambda stage: None) -> Iterator[None]:
    """Hold a lock.

    A second lock, `.turn`, is a queue of length one. Without it, a process that runs job after job would
    retake the device as soon as it releases it, and the others would starve.
    """
    folder = Path(os.environ.get("KERNELPRO_LOCKS") or _FOLDER)
    lock = _open(folder / f"{name}.lock")
    try:
        turn = _open(folder / f"{name}.turn")
        try:
            _wait(turn, fcntl.LOCK_EX, report)
            _wait(lock, how, report)
        finally:
            os.close(turn)
        yield
    finally:
        os.close(lock)


def _wait(lock: int, how: int, report: Report) -> None:
    last_report = -_REPORT_SECONDS
    while not _try_lock(lock, how):
        if time.monotonic() - last_report >= _REPORT_SECONDS:
            report(WAITING_FOR_DEVICE)
            last_report = time.monotonic()
        time.sleep(0.02)


def _try_lock(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """Open a lock file, read-only: another user's file in a shared folder cannot be opened for writing."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o777, exist_ok=True)
        with contextlib.suppress(PermissionError):
            path.parent.chmod(0o1777)
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
