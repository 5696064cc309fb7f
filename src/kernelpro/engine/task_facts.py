"""The ground of a run, laid once and kept: can the task be scored, how fast are its baselines, what is it made of?

baselines, baseline_ms, floor_ms, precision, unit, tolerance, hardware, work    from the probe, without which there is no run
graph, no_graph, seeds, no_seeds                                                from the study, without which there is one
"""

from __future__ import annotations

import asyncio
from typing import Any

from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Job, RunConfig


class NotScorable(BadInput):
    """The task runs, and no speed-up on it would mean anything."""


async def measure_task(store: RunStore, config: RunConfig, ask: SubmitJob) -> dict[str, Any]:
    """What is kept; where nothing is, probe and study the task. A task that cannot be scored is bad input."""
    if known := store.task_facts():
        return known
    studying = asyncio.ensure_future(_study(config, ask))  # at once: the answers may be a journey away
    try:
        ground = await _probe(config, ask)
        ground |= await studying
    finally:
        studying.cancel()
        await asyncio.gather(studying, return_exceptions=True)
    ground["seeds"] = _first(ground["seeds"], ground["baselines"])
    store.save_task_facts(ground)
    return ground


async def _probe(config: RunConfig, ask: SubmitJob) -> dict[str, Any]:
    result = await ask(Job("ground", "probe", config.task, target=config.target, options=config.options))
    if result.data is None:
        raise BadInput(result.error or "the task could not be probed")
    if not result.data["scorable"]:
        raise NotScorable(f"this task cannot be scored: {result.data['reason']}")
    times = {name: interval["value"] for name, interval in result.data["baselines"].items()}
    ground = {"baselines": times, "baseline_ms": min(times.values()), "floor_ms": result.data["floor_ms"]}
    told = {name: result.data[name] for name in ("precision", "tolerance", "hardware", "work")}
    return ground | told | {"unit": result.data.get("unit", "")}  # workers of earlier versions do not say it


async def _study(config: RunConfig, ask: SubmitJob) -> dict[str, Any]:
    variants = tuple(dict.fromkeys(("compile", *config.options.baselines))) if config.compile_seed else ()
    result = await ask(
        Job("ground", "study", config.task, target=config.target, options=config.options, seed_baselines=variants)
    )
    failed = result.error or "the task could not be studied"
    return result.data or {"graph": None, "no_graph": failed, "seeds": [], "no_seeds": failed}


def _first(seeds: list[dict[str, Any]], times: dict[str, float]) -> list[dict[str, Any]]:
    """The compiler's code and the fastest baseline, once if they are the same: so no run ends slower than where it began."""
    wanted = {"compile", min(times, key=lambda name: times[name])}
    return list({seed["source"]: seed for seed in reversed(seeds) if seed["variant"] in wanted}.values())[
        ::-1
    ]
