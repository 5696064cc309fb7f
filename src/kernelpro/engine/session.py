"""One whole run from Python: found again or begun, worked on until its budget is spent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelpro.authors.by_name import create_author
from kernelpro.engine.task_facts import NotScorable
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.memory.knowledge import Knowledge, default_path
from kernelpro.pools.pool import Outstanding, Pool
from kernelpro.records import BadInput, Job, Outcome, RunConfig, Target

Report = Callable[[str, dict[str, Any]], None]


def pool_target(pool: Pool) -> Target:
    """What a pool's workers have: a GPU, or only the CPU."""
    found = pool.ask(Job("environment", "environment")).data or {}
    return "cuda" if found.get("gpu") else "cpu"


def energy_unavailable(pool: Pool, target: Target) -> str:
    """Why energy cannot be measured on a pool's workers; empty where it can, or where nobody is here to be asked."""
    try:
        found = pool.ask(Job("environment", "environment", target=target))
    except Outstanding:
        return ""
    return found.error or str((found.data or {}).get("no_energy", ""))


def identity(config: RunConfig) -> str:
    """What decides how a run ends: not where its jobs are done, nor whether somebody waits for them."""
    return replace(config, wait=False, pool="local", gpu_name="").nondefault_json()


def store_for(home: Path, config: RunConfig, name: str, unfinished: bool = False) -> RunStore:
    """The run of this very configuration under this name, if it was begun before, and, if so asked, not ended; else a new one."""
    name = re.sub(r"[^\w.-]+", "-", name)
    for folder in sorted(home.glob(f"{name}-*")):
        try:
            store = RunStore.open(home, folder.name)
            if identity(store.config()) == identity(config) and not (unfinished and store.outcome()):
                store.save_config(config)
                return store
            store.close()
        except BadInput:  # killed before its configuration was on disk: nothing is in it
            continue
    return RunStore.create(home, config, name)


def is_stillborn(store: RunStore, error: BadInput) -> bool:
    """Whether its task does not even run: nothing is in it. Of one that cannot be scored the report says why."""
    try:
        return store.task_facts() is None and not isinstance(error, NotScorable)
    except BadInput:  # the store itself failed
        return False


async def work(
    store: RunStore, pool: Pool, report: Report = lambda kind, data: None, explain: bool = True
) -> Outcome:
    """Until the end; a run that has ended goes on only if answers were lacking. Raises `Paused` where answers or results are
    outstanding. `explain`: the winner is diagnosed too, for whoever looks at this very run."""
    if (done := store.outcome()) and not done.unanswered:
        return done
    store.lock()
    config = store.config()
    knowledge = Knowledge(default_path() if config.knowledge else None)
    writer = create_author(config, store.folder, lambda line: report("note", {"line": line}))
    return await Engine(store, pool, writer, report, knowledge).run(explain)
