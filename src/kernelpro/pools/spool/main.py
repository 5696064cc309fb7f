"""A worker's command line without any library: what `kernelpro worker DIR` does, and what the packed worker is."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path

from kernelpro.pools.spool.worker import WorkerOptions, serve
from kernelpro.records import BadInput


def run_until_done(path: Path, options: WorkerOptions) -> int:
    """Until it is done, time is up, or somebody stops us: then what is unfinished goes back. 1: a device or the spool failed."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    return 0 if serve(path, options, _log, stop) else 1


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Do the jobs of a KernelPro spool. Needs Python and torch alone."
    )
    parser.add_argument("spool", type=Path, help="a spool's folder, or a file with its jobs")
    parser.add_argument("--once", action="store_true", help="end when there is nothing more to do")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="end in time, with nothing half done, after so many"
    )
    parser.add_argument(
        "--lease", type=float, default=120.0, help="seconds without a sign of life until others take our jobs"
    )
    parser.add_argument("--match", default="", help="only devices whose name contains this")
    parser.add_argument("--sandbox", default="auto", choices=("auto", "namespaces", "landlock", "process"))
    arguments = parser.parse_args()
    try:
        sys.exit(run_until_done(arguments.spool, WorkerOptions(arguments.once, arguments.seconds, arguments.lease, arguments.sandbox, arguments.match)))
    except BadInput as error:
        print(f"kernelpro: {error}", file=sys.stderr)
        sys.exit(2)
