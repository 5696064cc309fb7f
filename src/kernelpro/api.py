"""The Python API: judge or find kernels for a KernelBench file, a module with example inputs, or a plain function."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from kernelpro.records import (
    BadInput,
    Candidate,
    Job,
    Limits,
    Mode,
    Objective,
    Options,
    Outcome,
    Precision,
    Role,
    RunConfig,
    Target,
    Task,
    Verdict,
)

if TYPE_CHECKING:
    from kernelpro.engine.store import Store
    from kernelpro.pools.pool import Pool

Report = Callable[[str, dict[str, Any]], None]
"""Hears the name of an event, and what there is to it."""


def task(
    reference: Any,
    inputs: Sequence[Any] = (),
    init_inputs: Sequence[Any] = (),
    mode: Mode | None = None,
    precision: Precision | None = None,
) -> Task:
    """A task from a path (KernelBench file), an `nn.Module` instance or a function.

    For modules and functions `inputs` are examples: every judged call gets fresh values with the same
    shapes and the same distribution. A module keeps its own mode and parameters; `init_inputs` are what
    `ModelNew` is constructed with.
    """
    if isinstance(reference, Task):
        return reference
    if isinstance(reference, (str, Path)):
        return Task.from_file(reference, mode or "train", precision)
    import torch

    from kernelpro.pools import packing

    if isinstance(inputs, (torch.Tensor, dict, str)):
        raise BadInput(f"inputs: a list of what it is called with is needed, not a {type(inputs).__name__}")
    if isinstance(reference, type) and issubclass(reference, torch.nn.Module):
        raise BadInput(f"{reference.__qualname__} is a class: give an instance of it, with its weights")
    reference = getattr(reference, "_orig_mod", reference)  # of what torch.compile made
    if isinstance(reference, torch.nn.Module):
        made = packing.module(reference, inputs, init_inputs)
        own: Mode = "train" if reference.training else "eval"
        same = made.outputs if mode in (None, own) else ""
        return Task(made.source, made.entry, "module", made.entry, made.payload, mode or own, precision, same)
    if callable(reference):
        made = packing.function(reference, inputs)
        return Task(
            made.source,
            made.entry,
            "function",
            made.entry,
            made.payload,
            mode or "eval",
            precision,
            made.outputs,
        )
    raise BadInput(f"a task is a path, an nn.Module or a function, not a {type(reference).__name__}")


def _require_known(target: str | None) -> None:
    if target not in (None, *get_args(Target)):
        raise BadInput(f"target {target!r}: there are {' and '.join(get_args(Target))}")


def judge(
    reference: Any,
    candidates: str | Path | Candidate | Sequence[str | Path | Candidate],
    inputs: Sequence[Any] = (),
    *,
    target: Target | None = None,
    options: Options | None = None,
    **about: Any,
) -> list[Verdict]:
    """One verdict for each candidate (a path, or a Candidate). `about` goes to `task`."""
    from kernelpro.pools import local

    _require_known(target)
    many = [candidates] if isinstance(candidates, (str, Path, Candidate)) else list(candidates)
    loaded = [c if isinstance(c, Candidate) else Candidate.from_file(c) for c in many]
    what = task(reference, inputs, **about)
    chosen = options or Options()
    jobs = [Job(str(i), "judge", what, c, target, chosen) for i, c in enumerate(loaded)]
    verdicts = []
    for result in local.run(jobs, sandbox=chosen.sandbox):
        if result.verdict is None:
            raise BadInput(result.error or "no verdict")
        verdicts.append(result.verdict)
    return verdicts


@dataclass(frozen=True)
class Optimized:
    """How a run ended, and what won."""

    run: Path
    """The run's folder: `kernelpro show NAME --home FOLDER` looks into it."""
    outcome: Outcome
    source: str | None
    """The winner's text, a file with `ModelNew`; None where nothing passed."""
    report: Path | None = None
    """The page that tells of the run; None where it could not be written."""

    @property
    def verdict(self) -> Verdict | None:
        return self.outcome.verdict


def _to_stderr(kind: str, data: dict[str, Any]) -> None:
    if line := data.get("line"):
        print(line, file=sys.stderr, flush=True)


def optimize(
    reference: Any,
    inputs: Sequence[Any] = (),
    *,
    author: str | None = None,
    model: str = "",
    roles: dict[str, Role] | None = None,
    prices: dict[str, str] | None = None,
    compiler: bool = True,
    objective: Objective = "speed",
    speed_tolerance: float = 0.02,
    limits: Limits | None = None,
    target: Target | None = None,
    options: Options | None = None,
    home: str | Path | None = None,
    report: Report = _to_stderr,
    **about: Any,
) -> Optimized:
    """Search for a faster kernel, as `kernelpro optimize` does; `author` and `model` are named as there, `about` goes to `task`.

    Who writes: the team if there is a model, else the playbook; `compiler`: torch.compile's own code is among the first candidates.
    `roles` says how design, plan, code and debug are asked for; `prices` what models cost, such as `{"gpt-x": "1.25/10"}`.
    `objective`: what to look for; `speed_tolerance`: kernels within this share of the fastest one's time count as equally fast.
    The same call goes on with a run that was stopped, or whose model could not be reached, and returns at once what a finished one
    found. However it ends, `report.html` is in the run's folder; of a task that does not run, no run is left. `report` hears what
    goes on, as `--json` tells it; "line" has it in words, where that is worth a line, which goes to stderr unless told otherwise.
    It can be called where an event loop is running, as in notebooks."""
    from kernelpro.authors.by_name import absolute
    from kernelpro.engine import session
    from kernelpro.engine.store import default_home
    from kernelpro.pools.local import Pool

    _require_known(target)
    what, chosen = task(reference, inputs, **about), options or Options()
    folder = Path(home) if home else default_home()
    with Pool(chosen.sandbox) as pool:
        where = target or session.target_of(pool)
        if objective != "speed" and (reason := session.no_energy(pool, where)):
            raise BadInput(f"objective {objective}: {reason}")
        config = RunConfig(
            what.for_target(where),
            where,
            author or ("team" if model else "playbook"),
            {"code": model} if model else {},
            limits=limits or Limits(),
            options=chosen,
            compile_seed=compiler,
            roles=roles or {},
            prices=prices or {},
            objective=objective,
            speed_tolerance=speed_tolerance,
        )
        return _beside_any_loop(_search, pool, absolute(config, folder), folder, report)


def _beside_any_loop(work: Callable[..., Optimized], *arguments: Any) -> Optimized:
    """A notebook's cells run in an event loop, and within one no other can be run: then in a thread of its own. Ctrl-C ends it."""
    stops: list[Callable[[], object]] = []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work(*arguments, stops)
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(work, *arguments, stops).result()
        except KeyboardInterrupt:
            for stop in stops:
                stop()
            raise


async def _stoppable(work: Coroutine[Any, Any, Outcome], stops: list[Callable[[], object]]) -> Outcome:
    """`stops`: where other threads find how to end it."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    stops.append(lambda: loop.call_soon_threadsafe(task.cancel))
    return await task


def _search(
    pool: Pool, config: RunConfig, folder: Path, report: Report, stops: list[Callable[[], object]]
) -> Optimized:
    from kernelpro.engine import session

    store = session.store_for(folder, config, config.task.name)
    stillborn = False
    try:
        working = session.work(store, pool, lambda kind, data: report(kind, data | _line(store, kind, data)))
        outcome = asyncio.run(_stoppable(working, stops))
        winner = store.step(outcome.best) if outcome.best is not None else None
        source = store.source(winner.final_source) if winner else None
    except BadInput as error:
        stillborn = session.is_stillborn(store, error)
        raise
    finally:
        if stillborn:
            store.delete()
        else:
            written = _report(store)
            store.close()
    return Optimized(store.folder, outcome, source, written)


def _line(store: Store, kind: str, data: dict[str, Any]) -> dict[str, str]:
    """An event in words, where it has any."""
    from kernelpro.report import sentence

    if kind == "ground":
        return {"line": sentence.laid(data)}
    step = store.step(data["step"]) if kind == "settled" else None
    return {"line": sentence.settled(step)} if step else {}


def _report(store: Store) -> Path | None:
    """What a run found does not depend on whether its report could be written."""
    from kernelpro.report import write

    try:
        return write(store)
    except BadInput:
        return None
