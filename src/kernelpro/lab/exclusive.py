"""One at a time on a device, among all processes of the machine.

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


@contextlib.contextmanager
def exclusive(device: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the device, by the UUID of a GPU or `cpu`; `report` hears of waiting.

    Whoever waits at the door has the turn: without it, a process with one job after another would take the device back
    in the moment in which it lets go, and the others would starve.
    """
    folder = Path(os.environ.get("KERNELPRO_LOCKS") or _FOLDER)
    lock = _open(folder / f"{device}.lock")
    try:
        turn = _open(folder / f"{device}.turn")
        try:
            _wait(turn, report)
            _wait(lock, report)
        finally:
            os.close(turn)
        yield
    finally:
        os.close(lock)


def _wait(lock: int, report: Callable[[str], None]) -> None:
    told = -_TELL_SECONDS
    while not _taken(lock):
        if time.monotonic() - told >= _TELL_SECONDS:
            report("waiting: another process is timing on this device")
            told = time.monotonic()
        time.sleep(0.02)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
