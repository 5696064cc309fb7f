"""The exact commands: judge the winner again, search again, look closer, go on."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from kernelpro.engine.store import Store, default_home
from kernelpro.records import Limits, Options, RunConfig

_BUDGET = {
    "candidates": "candidates",
    "dollars": "dollars",
    "tokens": "tokens",
    "wall_seconds": "wall",
    "device_seconds": "device",
    "stop_at_floor": "floor",
}

_JUDGED = {
    "min_authored": "--min-authored",
    "call_timeout": "--timeout",
    "build_timeout": "--build-timeout",
    "memory_gib": "--memory",
}
"""Options of `judge` that `optimize` has not."""


def commands(
    store: Store, config: RunConfig, precision: str | None, winner: int | None, goes_on: bool
) -> list[dict[str, str]]:
    """`what` in words and the `command` for it. Files are named as the report's own buttons save them."""
    home = _home(store)
    found: list[dict[str, str]] = []
    if goes_on:
        found.append(_line("Go on with this run", "resume", store.id, *home))
    if config.task.form == "kernelbench":
        task = _task(config, precision)
        place = _place(config)
        if winner is not None:
            judged = (*task, *_judge(config), *place)
            found.append(
                _line(
                    "Judge the winner again, at full length",
                    "judge",
                    "task.py",
                    "winner.py",
                    "--full",
                    *judged,
                )
            )
            found.append(_line("Ask what limits it", "profile", "task.py", "winner.py", *task, *place))
        unsaid = _unsaid(config)
        what = f"Search again; from Python only: {', '.join(unsaid)}" if unsaid else "Search again"
        found.append(_line(what, "optimize", "task.py", *_search(config), *task, *_baselines(config), *place))
    if winner is not None:
        found.append(_line("Take the winner as one file", "export", store.id, *home))
        found.append(_line("Look at the winner's step", "show", store.id, str(winner), *home))
    found.append(_line("Write this report again", "report", store.id, *home))
    return found


def home_option(store: Store) -> str:
    """What a printed command needs to find the run: nothing where runs are usually kept."""
    return "".join(f" {shlex.quote(word)}" for word in _home(store))


def _home(store: Store) -> list[str]:
    there = store.folder.parent.absolute()
    return [] if there == default_home().absolute() else ["--home", str(there)]


def _line(what: str, *words: str) -> dict[str, str]:
    return {"what": what, "command": shlex.join(("kernelpro", *words))}


def _task(config: RunConfig, precision: str | None) -> list[str]:
    return [
        "--target",
        config.target,
        "--mode",
        config.task.mode,
        *(["--precision", precision] if precision else []),
    ]


def _place(config: RunConfig) -> list[str]:
    words = ["--sandbox", config.options.sandbox] if config.options.sandbox != "auto" else []
    words += ["--pool", config.pool] if config.pool != "local" else []
    words += ["--match", config.gpu_name] if config.gpu_name else []
    return words + (["--wait"] if config.wait else [])


def _baselines(config: RunConfig) -> list[str]:
    names = config.options.baselines if config.options.baselines != Options().baselines else ()
    return [word for name in names for word in ("--baseline", name)]


def _judge(config: RunConfig) -> list[str]:
    options, usual, words = config.options, Options(), _baselines(config)
    for name in options.allow:
        words += ["--allow", name]
    for field, option in _JUDGED.items():
        if (value := getattr(options, field)) != getattr(usual, field):
            words += [option, _number(value)]
    return words + (["--energy"] if options.energy else [])


def _unsaid(config: RunConfig) -> list[str]:
    """What decided the run and `optimize` has no option for: it was begun from Python."""
    said = ("baselines", "sandbox")
    usual = Options()
    differs = [
        field.name
        for field in fields(Options)
        if getattr(config.options, field.name) != getattr(usual, field.name)
    ]
    found = [f"{name}={getattr(config.options, name)!r}" for name in differs if name not in said]
    return found + ([f"finalists={config.finalists}"] if config.finalists != RunConfig.finalists else [])


def _search(config: RunConfig) -> list[str]:
    constants = ",".join(f"{name}={_number(value)}" for name, value in config.constants.items())
    policy = f"{config.policy}:{constants}" if constants else config.policy
    words = ["--author", config.author, "--policy", policy, "--seed", str(config.seed)]
    words += ["--in-flight", str(config.concurrency), "--tune", str(config.tune_points)]
    for language in config.languages:
        words += ["--language", language]
    words += ["--objective", config.objective] if config.objective != "speed" else []
    if config.speed_tolerance != RunConfig.speed_tolerance:
        words += ["--tolerance", _number(100 * config.speed_tolerance)]
    for role, option in (("code", "--model"), ("plan", "--plan-model"), ("debug", "--debug-model")):
        words += [option, config.models[role]] if config.models.get(role) else []
    for role, asked in config.roles.items():
        words += ["--role", f"{role}:{','.join(f'{key}={value}' for key, value in asked.given().items())}"]
    for model, price in config.prices.items():
        words += ["--price", f"{model}={price}"]
    words += [] if config.temperature else ["--no-temperature"]
    words += [] if config.compile_seed else ["--no-compiler"]
    words += [] if config.knowledge else ["--no-knowledge"]
    given: dict[str, Any] = config.limits.to_json()
    usual = Limits().to_json()
    for field, name in _BUDGET.items():
        if given[field] != usual[field] or field == "candidates":
            words += ["--budget", f"{name}={_number(given[field])}"]
    return words


def _number(value: float) -> str:
    """All of it, as the command line takes it: no exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".")
