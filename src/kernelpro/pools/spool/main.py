"""The command line of a spool worker, with the standard library only. `kernelpro worker DIR` and the packed
worker use it."""

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
    """Run jobs until none is left, the time is up or a signal arrives. Unfinished jobs are returned to the
    spool.

    Returns the exit code: 1 if a device or the spool failed, else 0.
    """
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    return 0 if serve(path, options, _log, stop) else 1


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description="Run the jobs of a KernelPro spool. Needs only Python and torch."
    )
    parser.add_argument("spool", type=Path, help="a spool folder, or a file of jobs")
    parser.add_argument("--once", action="store_true", help="exit when no job is left")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=0.0,
        help="exit within this many seconds; jobs that would take longer stay in the spool (0: no limit)",
    )
    parser.add_argument(
        "--lease-timeout",
        type=float,
        default=120.0,
        help="seconds without a heartbeat after which other workers take its jobs over",
    )
    parser.add_argument("--gpu-name", default="", help="use only devices whose name contains this text")
    parser.add_argument(
        "--sandbox",
        default="auto",
        choices=("auto", "namespaces", "landlock", "process"),
        help="how to isolate candidates; auto selects the strongest level that works",
    )
    arguments = parser.parse_args()
    try:
        options = WorkerOptions(
            arguments.once,
            arguments.time_limit,
            arguments.lease_timeout,
            arguments.sandbox,
            arguments.gpu_name,
        )
        sys.exit(run_until_done(arguments.spool, options))
    except BadInput as error:
        print(f"kernelpro: {error}", file=sys.stderr)
        sys.exit(2)
