"""Measures the task of a run once, before the first candidate, with a probe and a study.

The probe decides whether the task can be scored and times its baselines; if it fails, the run ends. The study
reads the operator graph and collects the seeds; if it fails, the run continues without them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

from kernelpro.authors.cuda_graph import MIN_OPERATORS, in_cuda_graph
from kernelpro.engine.profiling import SubmitJob
from kernelpro.engine.store import RunStore
from kernelpro.records import BaselineSeed, Job, NotScorable, ProbeData, RunConfig, StudyData, TaskFacts

_ALMOST = 1.03
"""Baselines within this multiple of the fastest one's time are almost as fast."""


async def measure_task(store: RunStore, config: RunConfig, submit: SubmitJob) -> TaskFacts:
    """The stored facts; if there are none, run a probe and a study and store their results. Raises
    NotScorable if the task cannot be scored, BadInput if it does not run."""
    if facts := store.task_facts():
        return facts
    # both at once, because each result of a spool may take hours
    study_task = asyncio.ensure_future(_study(config, submit))
    try:
        probe = await _probe(config, submit)
        study = await study_task
    finally:
        study_task.cancel()
        await asyncio.gather(study_task, return_exceptions=True)
    baselines = {name: interval.value for name, interval in probe.baselines.items()}
    facts = TaskFacts(
        baselines,
        probe.floor_ms or 0.0,
        probe.precision,
        probe.unit,
        probe.tolerance,
        probe.hardware,
        probe.work,
        study.graph,
        study.graph_error,
        _first_seeds(study.seeds, baselines) + graphed_seeds(config, study, baselines),
        study.seed_errors,
        probe.shapes,
        study.other_graphs,
    )
    store.save_task_facts(facts)
    return facts


async def _probe(config: RunConfig, submit: SubmitJob) -> ProbeData:
    result = await submit(Job("task", "probe", config.task, target=config.target, options=config.options))
    if not isinstance(result.data, ProbeData):
        raise result.exception("facts about the task")
    if not result.data.scorable:
        raise NotScorable(result.data.reason)
    return result.data


async def _study(config: RunConfig, submit: SubmitJob) -> StudyData:
    names = tuple(dict.fromkeys(("compile", *config.options.baselines))) if config.compile_seed else ()
    job = Job(
        "task", "study", config.task, target=config.target, options=config.options, seed_baselines=names
    )
    result = await submit(job)
    if isinstance(result.data, StudyData):
        return result.data
    error = result.error or "the task could not be studied"
    return StudyData(graph_error=error, seed_errors=error)


def _first_seeds(seeds: Iterable[BaselineSeed], baselines: dict[str, float]) -> tuple[BaselineSeed, ...]:
    """The seeds from torch.compile and from the fastest baseline that has one, without duplicates. So no run
    ends with a kernel slower than the fastest baseline. Baselines that are almost as fast count as well,
    because which one is the fastest changes from one measurement to the next.

    A compiled baseline has none if the compiler does not trace the whole model, such as a recurrent network.
    Its time is then that of PyTorch's own code.
    """
    available = list(seeds)
    timed = [seed.baseline for seed in available if seed.baseline in baselines]
    limit = _ALMOST * min((baselines[name] for name in timed), default=0.0)
    chosen = {"compile", *(name for name in timed if baselines[name] <= limit)}
    unique: dict[str, BaselineSeed] = {}
    for seed in available:
        if seed.baseline in chosen:
            unique.setdefault(seed.source, seed)
    return tuple(unique.values())


def graphed_seeds(
    config: RunConfig, study: StudyData, baselines: dict[str, float]
) -> tuple[BaselineSeed, ...]:
    """On a GPU, if the task has many operators: torch.compile's code and the fastest baseline in a CUDA
    graph, because launches may take as long as the kernels. A task whose operators cannot be counted, such as
    a recurrent network, is assumed to have many."""
    if config.target != "cuda" or len(config.task.shapes) > 1:
        return ()
    if graph := study.graph:
        operators = sum(node.op not in ("input", "parameter") for node in graph.nodes)
        inputs = [node for node in graph.nodes if node.op == "input"]
        if operators < MIN_OPERATORS or any(not node.where.isdigit() for node in inputs):
            return ()
    sources = {seed.baseline: seed for seed in study.seeds}
    ordered = sorted(sources, key=lambda name: baselines.get(name, math.inf))
    graphed = {name: source for name in ordered if (source := in_cuda_graph(sources[name].source))}
    return tuple(
        BaselineSeed(name, f"{sources[name].name} in a CUDA graph", source)
        for number, (name, source) in enumerate(graphed.items())
        if number == 0 or name == "compile"
    )
