"""One at a time on a device, and no compiler while the CPU is timed, among all processes of the machine.

The lock is the kernel's (flock), so that it goes with the process that holds it, however that ends. Its file means nothing by
itself and stays; any user may open it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_FOLDER = Path("/tmp/kernelpro-locks")
"""The same for everybody: not $TMPDIR, which each worker has of its own. KERNELPRO_LOCKS names another, for those to whom it
does not matter who else is timing."""
_TELL_SECONDS = 5.0


Report = Callable[[str], None]


@contextlib.contextmanager
def exclusive(device: str, report: Report) -> Iterator[None]:
    """Hold the device, by the UUID of a GPU or `cpu`; `report` hears of waiting."""
    with _held(device, fcntl.LOCK_EX, report):
        yield


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """A compiler's turn, beside others; not while anybody is timing the CPU."""
    with _held("compilers", fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def without_compilers() -> Iterator[None]:
    """While the CPU is timed: no compiler of any worker's runs."""
    with _held("compilers", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _held(name: str, how: int, report: Report = lambda stage: None) -> Iterator[None]:
    """Whoever waits at the door has the turn: without it, a process with one job after another would take the device back
    in the moment in which it lets go, and the others would starve.
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
    told = -_TELL_SECONDS
    while not _taken(lock, how):
        if time.monotonic() - told >= _TELL_SECONDS:
            report("waiting: another process is timing on this device")
            told = time.monotonic()
        time.sleep(0.02)


def _taken(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """For reading, which is enough to lock: a file of another user in a folder for all may not be opened for more."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o777, exist_ok=True)
        with contextlib.suppress(PermissionError):
            path.parent.chmod(0o1777)
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
