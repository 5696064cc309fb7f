"""Processes that write the designs of later searches.

In threads of this process, writing would delay the runs, for which the device waits: beside two such threads,
a transaction of a run takes ten times as long.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.pool import Pool
from pathlib import Path

from kernelpro.authors.author import Author
from kernelpro.authors.by_name import create_author
from kernelpro.engine.design_race import designs_ahead
from kernelpro.records import Candidate, RunConfig, StudyData

PROCESSES = 2
_NICENESS = 5
_TIMEOUT = 300.0
"""Seconds after which designs are given up: the process that wrote them may have been killed."""

Written = tuple[Author, tuple[Candidate, ...]]
"""An author, which has the designs at hand, and the designs."""


class WritersClosed(Exception):
    """The processes were ended."""


class WriterProcesses:
    """The processes; they start with the first designs. Thread-safe."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._closed = False
        self._lock = threading.Lock()

    def write(self, config: RunConfig, study: StudyData) -> Written:
        """Write the designs that will race in a run, from the study of its task. Raises WritersClosed."""
        with self._lock:
            if self._closed:
                raise WritersClosed
            if self._pool is None:
                # not forked: this process has threads
                self._pool = multiprocessing.get_context("spawn").Pool(PROCESSES, _enter)
            pending = self._pool.apply_async(_write, (config, study))
        return pending.get(_TIMEOUT)

    def close(self) -> None:
        """End the processes at once."""
        with self._lock:
            self._closed = True
            if self._pool:
                self._pool.terminate()


def _enter() -> None:
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one


def _write(config: RunConfig, study: StudyData) -> Written:
    author = create_author(config, Path())
    return author, designs_ahead(author, config, study)
