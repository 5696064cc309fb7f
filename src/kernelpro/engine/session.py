"""The life of a run: validated, created or reopened, worked on, and closed.

validate      rejects an unusable author, model or objective, before a pool is started
open_run      creates the run of a request, or reopens the run that the same request created
continue_run  works on a run until its budget is spent; for a finished run, returns its outcome at once
closing       writes the report and closes the run, however the work ended
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kernelpro.authors.author import LANGUAGES, Author
from kernelpro.authors.by_name import create_author, with_absolute_paths
from kernelpro.engine.database import NoSpaceLeft
from kernelpro.engine.loop import Engine, ignore_event
from kernelpro.engine.run_state import OnEvent
from kernelpro.engine.steering import apply_budget, has_requests
from kernelpro.engine.store import RunStore
from kernelpro.memory.knowledge import Knowledge, default_path
from kernelpro.pools.pool import Pool, ResultPending
from kernelpro.records import BadInput, EnvironmentData, Job, Objective, Outcome, RunConfig, Target
from kernelpro.records.events import Note


@dataclass(frozen=True)
class RunRequest:
    """A run to create or to reopen."""

    config: RunConfig
    """The configuration. Its target is used only if `target` is given."""
    runs_dir: Path
    target: Target | None = None
    """None: a GPU if the pool has one, else the CPU."""
    name: str = ""
    """Name of the run; empty: the name of the task."""
    reuse: Literal["never", "unfinished", "always"] = "never"
    """Whether to reopen an existing run with the same name and configuration."""


def validate(request: RunRequest) -> RunRequest:
    """The request with absolute paths. Raises BadInput if the author, a model or the objective cannot be
    used."""
    config = with_absolute_paths(request.config, request.runs_dir)
    if config.objective != "speed" and len(config.task.shapes) > 1:
        raise BadInput(
            f"objective {config.objective}: energy can be measured for one shape only, and the task has "
            f"{len(config.task.shapes)}: keep the shape with the most calls, or use objective speed"
        )
    create_author(config, request.runs_dir / "unused")
    return replace(request, config=config)


def open_run(request: RunRequest, pool: Pool) -> RunStore:
    """Create the run, or reopen it. Raises BadInput if the pool cannot do what the request asks for."""
    target = request.target or pool_target(pool)
    config = with_absolute_paths(request.config, request.runs_dir)
    config = replace(config, task=config.task.for_target(target), target=target)
    check_languages(target, config.languages)
    check_objective(pool, target, config.objective)
    return find_or_create_run(replace(request, config=config))


def find_or_create_run(request: RunRequest) -> RunStore:
    """Create or reopen the run of a checked request. Needs no pool."""
    config = request.config
    name = re.sub(r"[^\w.-]+", "-", request.name or config.task.name)
    folders = sorted(request.runs_dir.glob(f"{name}-*")) if request.reuse != "never" else []
    for folder in folders:
        try:
            store = RunStore.open(request.runs_dir, folder.name)
            reusable = request.reuse == "always" or store.outcome() is None
            if reusable and identity(store.config()) == identity(config):
                store.save_config(config)
                return store
            store.close()
        except BadInput:  # the run was killed before its configuration was on disk
            continue
    return RunStore.create(request.runs_dir, config, name)


def identity(config: RunConfig) -> str:
    """The part of a configuration that determines the result of a run: all but where jobs run, and whether
    the run waits for them."""
    return replace(config, wait=False, pool="local", gpu_name="").nondefault_json()


def create_engine(
    store: RunStore, pool: Pool, on_event: OnEvent = ignore_event, author: Author | None = None
) -> Engine:
    """Lock a run and return its engine, with the author and the knowledge of earlier runs. `author`: the one
    of the run's configuration, if it exists already."""
    store.lock()
    config = store.config()

    def note(text: str) -> None:
        on_event(Note(text))

    knowledge = Knowledge(default_path() if config.knowledge else None, note)
    author = author or create_author(config, store.folder, note)
    return Engine(store, pool, author, on_event, knowledge)


async def continue_run(
    store: RunStore,
    pool: Pool,
    on_event: OnEvent = ignore_event,
    explain: bool = True,
    author: Author | None = None,
) -> Outcome:
    """Work on a run until its budget is spent, and return its outcome. A finished run is continued only if
    its limits were changed.

    `explain`: also diagnose the winner. `author`: see `create_engine`. Raises Paused if answers or results
    are outstanding.
    """
    has_work = False
    if has_requests(store):
        store.lock()
        has_work = apply_budget(store)
    complete = not has_work and store.is_finished and (store.is_winner_profiled or not explain)
    if complete and (outcome := store.outcome()):
        return outcome
    return await create_engine(store, pool, on_event, author).run(explain)


@contextmanager
def closing(
    store: RunStore, write_report: Callable[[RunStore], object], delete_if_unmeasured: bool = True
) -> Iterator[None]:
    """Write the report and close the run, however the block ends.

    `delete_if_unmeasured`: delete the run instead if the block raises BadInput before the task is measured.
    In this case the task does not run or cannot be scored, and there is nothing to resume. If the disk is
    full, the run is kept.
    """
    delete = False
    try:
        yield
    except BadInput as error:
        delete = delete_if_unmeasured and not isinstance(error, NoSpaceLeft) and _is_unmeasured(store)
        raise
    finally:
        if delete:
            store.delete()
        else:
            write_report(store)
            store.close()


def _is_unmeasured(store: RunStore) -> bool:
    try:
        return store.task_facts() is None
    except BadInput:  # the store itself failed
        return False


def pool_target(pool: Pool) -> Target:
    """`cuda` if a worker of the pool has a GPU, else `cpu`."""
    environment = pool.run(Job("environment", "environment")).data
    return "cuda" if isinstance(environment, EnvironmentData) and environment.environment.gpu else "cpu"


def check_languages(target: Target, languages: Iterable[str]) -> None:
    """Raise BadInput for a language in which no kernels for the target are written."""
    for language in languages:
        if language not in LANGUAGES[target]:
            names = " or ".join(LANGUAGES[target])
            raise BadInput(f"language {language}: kernels for {target} are written in {names}")


def check_objective(pool: Pool, target: Target, objective: Objective) -> None:
    """Raise BadInput if the objective needs energy and the pool's workers cannot measure it.

    If no worker is available, the verdicts will say so.
    """
    if objective == "speed":
        return
    try:
        result = pool.run(Job("environment", "environment", target=target))
    except ResultPending:
        return
    data = result.data
    if reason := result.error or (data.energy_error if isinstance(data, EnvironmentData) else ""):
        raise BadInput(f"objective {objective}: {reason}")
