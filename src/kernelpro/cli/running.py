"""`kernelpro optimize` and `kernelpro resume`: a run with a live display."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelpro import report
from kernelpro.authors.author import LANGUAGES
from kernelpro.authors.by_name import absolute, author
from kernelpro.cli.choosing import choose
from kernelpro.cli.display import Display
from kernelpro.cli.place import ELSEWHERE, Place
from kernelpro.cli.roles import prices, roles
from kernelpro.engine.loop import Engine, Paused
from kernelpro.engine.session import is_stillborn, no_energy, store_for, target_of
from kernelpro.engine.store import Store, default_home
from kernelpro.memory.knowledge import Knowledge
from kernelpro.memory.knowledge import default_path as knowledge_path
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Limits, Options, Outcome, RunConfig, Target, Task
from kernelpro.report.reproduce import home_option
from kernelpro.search.policy import read

EFFORTS = {"quick": 20, "normal": 75, "max": 300}
"""Candidates: 75 is the paper's 15 seeds and 30 iterations of 2."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LIMITS = {
    "candidates": "candidates",
    "dollars": "dollars",
    "tokens": "tokens",
    "wall": "wall_seconds",
    "device": "device_seconds",
}


@dataclass(frozen=True)
class Wanted:
    author: str | None
    policy: str
    budget: tuple[str, ...]
    effort: str
    in_flight: int
    seed: int
    sandbox: Any
    knowledge: bool = True
    models: dict[str, str] = field(default_factory=dict)
    baselines: tuple[str, ...] = ()
    temperature: bool = True
    compiler: bool = True
    place: Place = field(default_factory=Place)
    objective: Any = "speed"
    tolerance: float = 0.02
    tune: int = 12
    languages: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()


def limits(texts: tuple[str, ...], base: Limits) -> Limits:
    """`candidates=75`, `wall=2h`, `floor=0.9` ...: what is not said stays."""
    for text in texts:
        name, _, value = text.partition("=")
        amount = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d+)?)([smhd]?)", value)
        number = float(amount[1]) * _SECONDS.get(amount[2], 1.0) if amount else math.inf
        unit = amount[2] if amount else ""
        if name == "floor" and not unit and number <= 1:
            base = replace(base, stop_at_floor=number)
        elif name in _LIMITS and math.isfinite(number) and (bool(unit) <= (name in ("wall", "device"))):
            whole = name in ("candidates", "tokens")
            base = replace(base, **{_LIMITS[name]: int(number) if whole else number})  # type: ignore[arg-type]
        else:
            known = ", ".join((*_LIMITS, "floor"))
            raise BadInput(
                f"--budget {text}: say NAME=NUMBER with one of {known}; wall and device take s, m, h or d"
            )
    return base


def optimize(
    path: str,
    target: Any,
    precision: Any,
    mode: Any,
    wanted: Wanted,
    name: str | None,
    home: str | None,
    json_lines: bool,
) -> int:
    task = Task.from_file(path, mode, precision)
    if wanted.tolerance != RunConfig.speed_tolerance and wanted.objective == "speed":
        raise BadInput("--tolerance goes with --objective energy-at-speed or edp")
    named, asked = roles(wanted.roles)
    chosen = choose(wanted.author, wanted.models | named, os.environ)
    budget = chosen.capped(limits(wanted.budget, Limits(candidates=EFFORTS[wanted.effort])))
    folder = Path(home) if home else default_home()
    draft = RunConfig(
        task,
        target or "cpu",
        chosen.author,
        chosen.models,
        limits=budget,
        roles=asked,
        prices=prices(wanted.prices),
    )
    draft = absolute(draft, folder)
    author(draft, folder / "unborn")  # a bad name shows before anything is begun
    policy, constants = read(wanted.policy)
    wanted.place.require(target)
    options = Options(sandbox=wanted.sandbox)
    with wanted.place.open(wanted.sandbox) as pool:
        if target == "cuda":
            wanted.place.demand(pool, target)
        where = target or target_of(pool)
        if strange := [name for name in wanted.languages if name not in LANGUAGES[where]]:
            raise BadInput(
                f"--language {strange[0]}: for {where} kernels are written in {' or '.join(LANGUAGES[where])}"
            )
        require_counter(pool, where, wanted.objective)
        config = replace(
            draft,
            task=task.for_target(where),
            target=where,
            temperature=wanted.temperature,
            wait=wanted.place.wait,
            pool=wanted.place.lasting,
            gpu_name=wanted.place.match,
            policy=policy,
            constants=constants,
            options=replace(options, baselines=wanted.baselines) if wanted.baselines else options,
            concurrency=wanted.in_flight,
            seed=wanted.seed,
            tune_points=wanted.tune,
            languages=wanted.languages,
            compile_seed=wanted.compiler,
            knowledge=wanted.knowledge,
            objective=wanted.objective,
            speed_tolerance=wanted.tolerance,
        )
        label = re.sub(r"[^\w.-]+", "-", name or task.name)
        store = (
            store_for(folder, config, label, unfinished=True)
            if _stops(config)
            else Store.create(folder, config, label)
        )
        first = f"{_where(config, found=target is None)}\n{chosen.why}{_again(store)}"
        return _work(store, pool, json_lines, first, fresh=not _stops(config))


def _stops(config: RunConfig) -> bool:
    """Where a run stops for answers or results from outside, the same command goes on with it."""
    outside = any(spec.startswith("inbox:") for spec in config.models.values()) or config.pool.startswith(
        "spool:"
    )
    return outside and not config.wait


def _again(store: Store) -> str:
    return (
        f"\n{store.id} was begun before with this very command, and goes on; --name begins another"
        if store.ground()
        else ""
    )


def _where(config: RunConfig, found: bool) -> str:
    """What is computed on, and how to have the other. `found`: nobody said which."""
    if config.target == "cuda":
        return f"on the GPU{', as there is one' * found}; on the CPU: --target cpu"
    here = config.pool.startswith("local")
    return f"on the CPU{', as no GPU is here' * (found and here)}; on a GPU: --target cuda{f', {ELSEWHERE}' * here}"


def resume(
    run: str,
    budget: tuple[str, ...],
    price: tuple[str, ...],
    pool: str | None,
    home: str | None,
    json_lines: bool,
) -> int:
    store = Store.open(Path(home) if home else default_home(), run)
    store.lock()
    config = store.config()
    if budget or price or pool:
        known = config.prices | prices(price)
        config = replace(
            config,
            limits=limits(budget, config.limits),
            prices=known,
            pool=Place(pool or config.pool).lasting,
        )
        author(config, store.folder)  # what cannot go on is said before anything is changed
        store.keep_config(config)
    with Place(config.pool, config.gpu_name, config.wait).open(config.options.sandbox) as there:
        return _work(store, there, json_lines)


def require_counter(pool: Pool, target: Target, objective: str) -> None:
    """An objective that cannot be measured is said before anything is begun; by verdicts, where nobody is here to be asked."""
    if objective != "speed" and (reason := no_energy(pool, target)):
        raise BadInput(f"--objective {objective}: {reason}")


def _work(store: Store, pool: Pool, json_lines: bool, first: str = "", fresh: bool = False) -> int:
    """Run until the end or Ctrl-C; 0: a winner that holds up, 1: none, 3: answers or results are outstanding, 130: stopped.

    A `fresh` run whose task does not run leaves nothing behind; of one that cannot be scored the report says why.
    """
    store.lock()
    stillborn = False
    config = store.config()
    display = Display(store, config, json_lines)
    if first:
        display.say(first)
    engine = Engine(
        store,
        pool,
        author(config, store.folder, display.say),
        display.event,
        Knowledge(knowledge_path() if config.knowledge else None, display.say),
    )
    display.watch(engine)
    try:
        with display:
            outcome = asyncio.run(_until_stopped(engine))
        display.final(outcome)
        return 0 if outcome.best is not None else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        display.say(
            f"stopped; everything so far is kept. Go on with: kernelpro resume {store.id}{home_option(store)}"
        )
        return 130
    except Paused as paused:
        folders = sorted(
            {spec.removeprefix("inbox:") for spec in config.models.values() if spec.startswith("inbox:")}
        )
        where = (
            f" (questions: {', '.join(f'{folder}/{store.id}__*.md' for folder in folders)})"
            if folders
            else ""
        )
        display.say(
            f"{paused}{where}; when they are there, go on with: kernelpro resume {store.id}{home_option(store)}"
        )
        return 3
    except BadInput as error:
        stillborn = fresh and is_stillborn(store, error)
        raise
    finally:
        if stillborn:
            store.delete()
        else:
            _report(store, display)
            store.close()


def _report(store: Store, display: Display) -> None:
    """However the run ended. What it found does not depend on whether the report could be written."""
    try:
        display.reported(report.write(store))
    except BadInput as error:
        display.say(f"no report: {error}")


async def _until_stopped(engine: Engine) -> Outcome:
    """Ctrl-C and SIGTERM cancel the run between two transactions."""
    task = asyncio.ensure_future(engine.run())
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, task.cancel)
    return await task
