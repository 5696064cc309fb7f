"""The exact commands: judge the winner again, search again, look closer, go on."""

from __future__ import annotations

import shlex
from typing import Any

from kernelpro.engine.store import Store, default_home
from kernelpro.records import Limits, Options, RunConfig

_BUDGET = {
    "candidates": "candidates",
    "money": "dollars",
    "tokens": "tokens",
    "wall_seconds": "wall",
    "device_seconds": "device",
    "floor_share": "floor",
}


def commands(store: Store, config: RunConfig, precision: str | None, winner: int | None, finished: bool) -> list[dict[str, str]]:
    """`what` in words and the `command` for it. Files are named as the report's own buttons save them."""
    home = _home(store)
    found: list[dict[str, str]] = []
    if not finished:
        found.append(_line("Go on with this run", "resume", store.id, *home))
    if config.task.form == "kernelbench":
        common = _common(config, precision)
        if winner is not None:
            found.append(_line("Judge the winner again, at full length", "judge", "task.py", "winner.py", "--full", *common))
            found.append(_line("Ask what limits it", "profile", "task.py", "winner.py", *common[: 6 if precision else 4]))
        found.append(_line("Search again", "optimize", "task.py", *_search(config), *common))
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


def _common(config: RunConfig, precision: str | None) -> list[str]:
    words = ["--target", config.target, "--mode", config.task.mode]
    words += ["--precision", precision] if precision else []
    if config.options.baselines != Options().baselines:
        for name in config.options.baselines:
            words += ["--baseline", name]
    return words + (["--sandbox", config.options.sandbox] if config.options.sandbox != "auto" else [])


def _search(config: RunConfig) -> list[str]:
    constants = ",".join(f"{name}={value:g}" for name, value in config.constants.items())
    policy = f"{config.policy}:{constants}" if constants else config.policy
    words = ["--author", config.author, "--policy", policy, "--seed", str(config.seed)]
    words += ["--in-flight", str(config.in_flight)]
    if config.objective != "speed":
        words += ["--objective", config.objective, "--tolerance", f"{100 * config.speed_tolerance:g}"]
    for role, option in (("code", "--model"), ("plan", "--plan-model"), ("debug", "--debug-model")):
        words += [option, config.models[role]] if config.models.get(role) else []
    for role, asked in config.roles.items():
        words += ["--role", f"{role}:{','.join(f'{key}={value}' for key, value in asked.given().items())}"]
    for model, price in config.prices.items():
        words += ["--price", f"{model}={price}"]
    words += [] if config.temperature else ["--no-temperature"]
    words += [] if config.compiler else ["--no-compiler"]
    words += [] if config.knowledge else ["--no-knowledge"]
    given: dict[str, Any] = config.limits.to_json()
    usual = Limits().to_json()
    for field, name in _BUDGET.items():
        if given[field] != usual[field] or field == "candidates":
            words += ["--budget", f"{name}={given[field]:g}"]
    return words
