"""`kernelpro worker` and `kernelpro spool`: working for a spool, and looking after its files."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from kernelpro.pools.spool import transfer
from kernelpro.pools.spool.folder import Folder
from kernelpro.pools.spool.main import work
from kernelpro.pools.spool.packing import pack as pack_worker
from kernelpro.pools.spool.worker import Terms
from kernelpro.records import BadInput


def worker(
    spool: str | None, once: bool, seconds: float, lease: float, match: str, out: str | None, sandbox: str
) -> int:
    if out:
        pack_worker(Path(out))
        print(f"{out}: run it with `python {out} DIR --once`; it needs Python 3.11 and torch")
        return 0
    if spool:
        return work(Path(spool), Terms(once, seconds, lease, sandbox, match))
    from kernelpro.lab import worker as lab

    os.environ["KERNELPRO_SANDBOX"] = sandbox
    lab.main()
    return 0


def status(folder: str, json_lines: bool) -> int:
    spool = _folder(folder)
    spool.tidy()
    left, held, workers, sick = spool.open_jobs(), spool.holders(), spool.workers(), spool.sick()
    done = len(list((spool.path / "results").glob("*.json")))
    if json_lines:
        at_work = {holder.worker: holder.hardware for holder in workers}
        taken, failed = sum(p.key in held for p in left), {holder.worker: holder.hardware for holder in sick}
        print(
            json.dumps({"open": len(left), "taken": taken, "done": done, "workers": at_work, "sick": failed})
        )
        return 0
    print(
        f"{folder}: {done} results, {len(left)} jobs open, {len(workers)} workers, {_aside(spool)} files set aside"
    )
    for posted in left:
        holder = held.get(posted.key)
        state = (
            f"{holder.worker}: {holder.stage or 'taken'}"
            if holder
            else _wants(spool.hardware(posted) or posted.match)
        )
        tries = spool.attempts(posted.key) - bool(holder and holder.stage)
        print(
            f"  {posted.key[:8]} {posted.words}: {state}"
            + (f"; {tries} workers were lost over it" if tries else "")
        )
    for name, count in Counter(holder.hardware for holder in workers).items():
        print(f"  {count} at work on {name}")
    for holder in sick:
        print(f"  {holder.worker} works no more on {holder.hardware}: {holder.stage}")
    return 0


def _wants(hardware: str) -> str:
    return f"waits for {hardware}" if hardware else "waits"


def _aside(spool: Folder) -> int:
    return len(list((spool.path / "aside").iterdir()))


def pack(folder: str, out: str) -> int:
    count = transfer.pack(_folder(folder), Path(out))
    if not count:
        print(f"nothing is open in {folder}: {out} is empty")
        return 0
    print(
        f"{count} jobs in {out}: do them with `kernelpro worker {out} --once`, and bring {Path(out).stem}.results.jsonl back"
    )
    return 0


def merge(folder: str, sources: list[str]) -> int:
    spool, strange = _folder(folder), 0
    for source in sources:
        found = transfer.merge(spool, Path(source))
        for text in found.strange:
            print(f"kernelpro: {text}", file=sys.stderr)
        strange += len(found.strange)
        print(
            f"{source}: {found.results} results and {found.jobs} jobs are new, {found.doubles} were there already"
        )
    print(f"{len(spool.open_jobs())} jobs are open")
    return 1 if strange else 0


def _folder(name: str) -> Folder:
    if not (Path(name) / "jobs").is_dir():
        raise BadInput(f"{name} is no spool: it has no folder `jobs`; `--pool spool:{name}` makes one")
    return Folder(Path(name), lambda text: print(f"kernelpro: {text}", file=sys.stderr))
