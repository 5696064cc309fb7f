"""The lock on a device that one or several workers use.

Workers that share a GPU prepare, verify and guard beside each other; what is timed has the device to itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import torch

from kernelpro.lab.exclusive import SHARES_VARIABLE, Report, exclusive, shared
from kernelpro.records import Target


def lock_on(target: Target) -> DeviceLock:
    """This worker's lock on the device of a target."""
    if target == "cpu" or not torch.cuda.is_available():
        return DeviceLock("cpu")
    name = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    return DeviceLock(name, int(os.environ.get(SHARES_VARIABLE, "1")))


class DeviceLock:
    """A worker's lock on a device that `shares` workers use.

    With one share, the device is held exclusively. With several, `held` lets other workers prepare, verify
    and guard at the same time; `alone` waits until none of them works on the device. The caller lets go of
    the device, at the end of `held` and at both ends of `alone`, only when no process of a candidate is left:
    its death is the proof that nothing of it runs while another worker times.
    """

    def __init__(self, name: str, shares: int = 1):
        self._name, self.shares = name, shares
        self._lock: contextlib.ExitStack | None = None
        self._is_alone = False
        self._report: Report = lambda stage: None
        self.waited_seconds = 0.0
        """Seconds for which it has waited for other workers while `held`."""

    @contextlib.contextmanager
    def held(self, report: Report, alone: bool = False) -> Iterator[None]:
        """Hold the device, exclusively where it has one share or `alone` is set. `report` is called while it
        waits."""
        self._report = report
        self._acquire(alone or self.shares == 1)
        try:
            yield
        finally:
            self._release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within `held`: hold the device exclusively, after those that asked before. Can be nested."""
        if self._is_alone:
            yield
            return
        self._hand_over(alone=True)
        try:
            yield
        finally:
            self._hand_over(alone=False)

    def _hand_over(self, alone: bool) -> None:
        """Let go first: two workers that keep their shares would wait for each other."""
        begun = time.monotonic()
        self._release()
        self._acquire(alone)
        self.waited_seconds += time.monotonic() - begun

    def _acquire(self, alone: bool) -> None:
        stack = contextlib.ExitStack()
        stack.enter_context((exclusive if alone else shared)(self._name, self._report))
        self._lock, self._is_alone = stack, alone

    def _release(self) -> None:
        if self._lock:
            self._lock.close()
        self._lock, self._is_alone = None, False
