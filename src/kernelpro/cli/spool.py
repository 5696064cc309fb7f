"""`kernelpro worker` and `kernelpro spool`: run jobs of a spool, and manage its files."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from kernelpro.pools.spool import transfer
from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.pools.spool.main import run_until_done
from kernelpro.pools.spool.packing import pack_worker
from kernelpro.pools.spool.worker import WorkerOptions
from kernelpro.records import BadInput


def run_worker(
    spool: str | None,
    *,
    once: bool = False,
    time_limit: float = 0.0,
    lease_timeout: float = 120.0,
    gpu_name: str = "",
    pack: str | None = None,
    sandbox: str = "auto",
) -> int:
    """Run jobs of a spool or from stdin, or write the worker as one file. This module needs only Python and
    torch."""
    if pack:
        pack_worker(Path(pack))
        print(f"{pack}: run it with `python {pack} DIR --once`; it needs Python 3.11 and torch")
        return 0
    if spool:
        return run_until_done(Path(spool), WorkerOptions(once, time_limit, lease_timeout, sandbox, gpu_name))
    from kernelpro.lab import worker as lab

    os.environ["KERNELPRO_SANDBOX"] = sandbox
    lab.main()
    return 0


def show_status(folder: str, as_json: bool) -> int:
    """Print open jobs, finished jobs and workers of a spool."""
    spool = _open(folder)
    spool.adopt_stray_results()
    open_jobs, holders = spool.open_jobs(), spool.lease_holders()
    workers, failed = spool.live_workers(), spool.failed_devices()
    done = len(list((spool.path / "results").glob("*.json")))
    if as_json:
        status = {
            "open": len(open_jobs),
            "leased": sum(job.key in holders for job in open_jobs),
            "done": done,
            "workers": {worker.worker: worker.hardware for worker in workers},
            "failed_devices": {worker.worker: worker.hardware for worker in failed},
        }
        print(json.dumps(status))
        return 0
    quarantined = len(list((spool.path / "quarantine").iterdir()))
    print(
        f"{folder}: {done} results, {len(open_jobs)} open jobs, {len(workers)} workers, "
        f"{quarantined} files in quarantine"
    )
    for job in open_jobs:
        holder = holders.get(job.key)
        hardware = spool.bound_hardware(job) or job.gpu_name
        state = f"waits{f' for {hardware}' if hardware else ''}"
        if holder:
            state = f"{holder.worker}: {holder.stage or 'leased'}"
        lost = spool.attempts(job.key) - bool(holder and holder.stage)
        print(f"  {job.key[:8]} {job.description}: {state}{f'; {lost} workers lost' if lost else ''}")
    for name, count in Counter(worker.hardware for worker in workers).items():
        print(f"  {count} workers on {name}")
    for worker in failed:
        print(f"  {worker.worker} stopped using {worker.hardware}: {worker.stage}")
    return 0


def pack_jobs(folder: str, out: str) -> int:
    """Write the open jobs of a spool to one file."""
    count = transfer.pack_jobs(_open(folder), Path(out))
    if not count:
        print(f"no open jobs in {folder}: {out} is empty")
        return 0
    print(
        f"{count} jobs in {out}: run them with `kernelpro worker {out} --once`, "
        f"then merge {Path(out).stem}.results.jsonl with `kernelpro spool merge`"
    )
    return 0


def merge_results(folder: str, sources: list[str]) -> int:
    """Import results from other machines into a spool; return 1 if some were rejected."""
    spool, errors = _open(folder), 0
    for source in sources:
        counts = transfer.merge(spool, Path(source))
        for error in counts.errors:
            print(f"kernelpro: {error}", file=sys.stderr)
        errors += len(counts.errors)
        print(
            f"{source}: {counts.results} new results, {counts.jobs} new jobs, {counts.duplicates} duplicates"
        )
    print(f"{len(spool.open_jobs())} open jobs")
    return 1 if errors else 0


def _open(folder: str) -> SpoolFolder:
    if not (Path(folder) / "jobs").is_dir():
        raise BadInput(
            f"{folder} is not a spool: it has no folder `jobs`; `--pool spool:{folder}` creates one"
        )
    return SpoolFolder(Path(folder), lambda text: print(f"kernelpro: {text}", file=sys.stderr))
