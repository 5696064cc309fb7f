"""Builds the configuration of a run from the options of `optimize` and `bench`."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.choice import AuthorChoice, cap_dollars, choose_author
from kernelpro.cli.options import SearchRunOptions
from kernelpro.cli.parsing import gives_dollars, parse_budget, parse_prices, parse_roles
from kernelpro.cli.pools import ELSEWHERE, absolute_pool
from kernelpro.records import BadInput, Limits, Options, RunConfig, Target, Task
from kernelpro.search.policy import parse_policy


def make_run_config(
    options: SearchRunOptions, task: Task, judge_options: Options, knowledge: bool
) -> tuple[RunConfig, AuthorChoice]:
    """The configuration of a run on `task`, and its author."""
    speed_tolerance = options.speed_tolerance / 100
    if options.objective == "speed" and speed_tolerance != RunConfig.speed_tolerance:
        raise BadInput("--speed-tolerance needs --objective energy-at-speed or edp")
    role_models, roles = parse_roles(options.role)
    prices = parse_prices(options.price)
    choice = choose_author(options.author, options.model, role_models)
    limits = parse_budget(options.budget, Limits(), options.stop_at_floor)
    given = limits.dollars if gives_dollars(options.budget) else None
    policy, constants = parse_policy(options.policy)
    config = RunConfig(
        task,
        options.target or "cpu",
        choice.author,
        choice.models,
        temperature=not options.no_temperature,
        wait=options.wait,
        pool=absolute_pool(options.pool),
        gpu_name=options.gpu_name,
        policy=policy,
        constants=constants,
        limits=replace(limits, dollars=cap_dollars(given, choice.models, prices)),
        options=judge_options,
        concurrency=options.concurrency,
        seed=options.seed,
        tune_points=options.tune_points,
        finalists=options.finalists,
        race=options.race,
        languages=tuple(language.value for language in options.language),
        compile_seed=not options.no_compile_seed,
        knowledge=knowledge,
        objective=options.objective,
        speed_tolerance=speed_tolerance,
        roles=roles,
        prices=prices,
    )
    return config, choice


def describe_target(target: Target, pool: str, given: bool) -> str:
    """The device of a run, why it was chosen, and how to choose the other one."""
    if target == "cuda":
        return f"target: GPU{'' if given else ' (found one)'}; to use the CPU: --target cpu"
    is_local = pool.startswith("local")
    reason = " (found no GPU)" if is_local and not given else ""
    return f"target: CPU{reason}; to use a GPU: --target cuda{f', {ELSEWHERE}' if is_local else ''}"


def describe_mode(task: Task, given: bool) -> str:
    """The mode of the module, why it was chosen, and how to choose the other one."""
    other = "eval" if task.mode == "train" else "train"
    reason = "KernelBench's convention" if task.form == "kernelbench" else "the module's own"
    return f"mode: {task.mode}{'' if given else f' ({reason})'}; to change it: --mode {other}"


def describe_budget(limits: Limits, dollars_given: bool) -> str:
    """All limits of a run in one line."""
    seconds = {"wall": limits.wall_seconds, "device": limits.device_seconds}
    plural = "s" * (limits.candidates != 1)
    parts = [f"{limits.candidates} candidate{plural}"] if limits.candidates else []
    if limits.dollars:
        hint = "" if dollars_given else " (default; --budget dollars=N changes it, 0: no limit)"
        parts.append(f"{limits.dollars:g} dollars{hint}")
    parts += [f"{limits.tokens} tokens"] if limits.tokens else []
    parts += [f"{amount:g} s of {name} time" for name, amount in seconds.items() if amount]
    if limits.stop_at_floor:
        parts.append(f"ends at {limits.stop_at_floor:.0%} of the floor")
    return f"budget: {', '.join(parts) or 'no limit'}"
