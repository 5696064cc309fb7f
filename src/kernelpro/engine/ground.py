"""The ground of a run, laid once and kept: can the task be scored, how fast are its baselines, what is it made of?

baselines, baseline_ms, floor_ms, precision, hardware, work     from the probe, without which there is no run
graph, no_graph, seeds, no_seeds                          from the study, without which there is one
"""

from __future__ import annotations

from typing import Any

from kernelpro.engine.profiling import Ask
from kernelpro.engine.store import Store
from kernelpro.records import BadInput, Job, RunConfig


async def lay(store: Store, config: RunConfig, ask: Ask) -> dict[str, Any]:
    """What is kept; where nothing is, probe and study the task. A task that cannot be scored is bad input."""
    if known := store.ground():
        return known
    ground = await _probe(config, ask)
    ground |= await _study(config, ground["baselines"], ask)
    store.keep_ground(ground)
    return ground


async def _probe(config: RunConfig, ask: Ask) -> dict[str, Any]:
    result = await ask(Job("ground", "probe", config.task, target=config.target, options=config.options))
    if result.data is None:
        raise BadInput(result.error or "the task could not be probed")
    if not result.data["scorable"]:
        raise BadInput(f"this task cannot be scored: {result.data['reason']}")
    times = {name: interval["value"] for name, interval in result.data["baselines"].items()}
    ground = {"baselines": times, "baseline_ms": min(times.values()), "floor_ms": result.data["floor_ms"]}
    return ground | {name: result.data[name] for name in ("precision", "hardware", "work")}


async def _study(config: RunConfig, times: dict[str, float], ask: Ask) -> dict[str, Any]:
    """The compiler's code and the fastest baseline as candidates: so no run ends slower than where it began."""
    fastest = min(times, key=lambda name: times[name])
    seeds = tuple(dict.fromkeys(("compile", fastest))) if config.compiler else ()
    result = await ask(Job("ground", "study", config.task, target=config.target, options=config.options, seeds=seeds))
    failed = result.error or "the task could not be studied"
    return result.data or {"graph": None, "no_graph": failed, "seeds": [], "no_seeds": failed}
