"""Work beside the judge, such as compilers, which is paused while a device is timed.

Compilers at the lowest priority still disturb timing: they share physical cores and memory with the timed
process, and the worker's threads that watch them compete with the judge for Python's global lock. Beside
eight builds, intervals on an H200 host were two to ten times wider.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Pausable(Protocol):
    """Processes that can be paused. Both methods return at once and never raise."""

    def pause(self) -> None:
        """Stop all processes."""

    def resume(self) -> None:
        """Let them continue."""


class BackgroundWork:
    """All background work of a worker. Thread-safe."""

    def __init__(self) -> None:
        self._members: set[Pausable] = set()
        self._pauses = 0
        self._changed = threading.Condition()

    @contextmanager
    def member(self, processes: Pausable) -> Iterator[None]:
        """In this block, these processes are paused whenever background work is."""
        with self._changed:
            self._members.add(processes)
            if self._pauses:
                processes.pause()
        try:
            yield
        finally:
            with self._changed:
                self._members.discard(processes)

    def wait_until_resumed(self) -> None:
        """Wait while background work is paused: new work does not start meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pauses)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In this block, background work is paused. Blocks may be nested."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """In this block, background work continues, because the caller waits for it."""
        pauses = self._pauses
        self._change(-pauses)
        try:
            yield
        finally:
            self._change(pauses)

    def _change(self, by: int) -> None:
        with self._changed:
            before, self._pauses = self._pauses, self._pauses + by
            if bool(before) != bool(self._pauses):
                for processes in self._members:
                    processes.pause() if self._pauses else processes.resume()
            self._changed.notify_all()
