"""The exact commands to judge the winner again, search again, look closer, or continue."""

from __future__ import annotations

import shlex
from dataclasses import fields

from kernelpro.engine.store import RunStore, runs_dir
from kernelpro.records import BASELINES, Limits, Options, RunConfig
from kernelpro.report.schema import ReproduceCommand

_BUDGET = {
    "candidates": "candidates",
    "dollars": "dollars",
    "tokens": "tokens",
    "wall_seconds": "wall",
    "device_seconds": "device",
}
_JUDGE_OPTIONS = {
    "min_own_share": "--min-own-share",
    "call_timeout": "--timeout",
    "build_timeout": "--build-timeout",
    "memory_gib": "--memory",
}
"""Options of `judge` that `optimize` does not have, by the field of `Options`."""


def commands(
    store: RunStore, config: RunConfig, precision: str | None, winner: int | None, can_resume: bool
) -> tuple[ReproduceCommand, ...]:
    """The commands for a run. Files have the names under which the report's buttons save them."""
    runs_dir = _runs_dir_words(store)
    result = [_command("Continue this run", "resume", store.id, *runs_dir)] if can_resume else []
    if config.task.form == "kernelbench":
        task, where = _task_words(config, precision), _pool_words(config)
        if winner is not None:
            options = (*task, *_judge_words(config), *where)
            files = ("task.py", "winner.py")
            result.append(
                _command("Judge the winner again, at full length", "judge", *files, "--full", *options)
            )
            result.append(_command("Find out what limits it", "profile", *files, *task, *where))
        python_only = _python_only(config)
        purpose = "Search again" + (f"; from Python only: {', '.join(python_only)}" if python_only else "")
        search = (*_search_words(config), *task, *_baseline_words(config), *where)
        result.append(_command(purpose, "optimize", "task.py", *search))
    if winner is not None:
        result.append(_command("Export the winner as one file", "export", store.id, *runs_dir))
        result.append(_command("Show the step of the winner", "show", store.id, str(winner), *runs_dir))
    result.append(_command("Write this report again", "report", store.id, *runs_dir))
    return tuple(result)


def runs_dir_option(store: RunStore) -> str:
    """The `--runs-dir` option that finds the run, with a leading space; empty for the default folder."""
    return "".join(f" {shlex.quote(word)}" for word in _runs_dir_words(store))


def _runs_dir_words(store: RunStore) -> list[str]:
    folder = store.folder.parent.absolute()
    return [] if folder == runs_dir().absolute() else ["--runs-dir", str(folder)]


def _command(purpose: str, *words: str) -> ReproduceCommand:
    return ReproduceCommand(purpose, shlex.join(("kernelpro", *words)))


def _task_words(config: RunConfig, precision: str | None) -> list[str]:
    words = ["--target", config.target, "--mode", config.task.mode]
    return words + (["--precision", precision] if precision else [])


def _pool_words(config: RunConfig) -> list[str]:
    words = ["--sandbox", config.options.sandbox] if config.options.sandbox != "auto" else []
    words += ["--pool", config.pool] if config.pool != "local" else []
    words += ["--gpu-name", config.gpu_name] if config.gpu_name else []
    return words + (["--wait"] if config.wait else [])


def _baseline_words(config: RunConfig) -> list[str]:
    selected, default = set(config.options.baselines), set(Options().baselines)
    words = []
    for name in BASELINES:
        if name in selected ^ default:
            words += ["--baseline" if name in selected else "--no-baseline", name]
    return words


def _judge_words(config: RunConfig) -> list[str]:
    options, default, words = config.options, Options(), _baseline_words(config)
    for name in options.disabled_tripwires:
        words += ["--disable-tripwire", name]
    for field, option in _JUDGE_OPTIONS.items():
        if (value := getattr(options, field)) != getattr(default, field):
            words += [option, _number(value)]
    return words + (["--energy"] if options.energy else [])


def _python_only(config: RunConfig) -> list[str]:
    """Settings for which `optimize` has no option. Only runs started from Python have them."""
    default = Options()
    names = [
        field.name
        for field in fields(Options)
        if field.name not in ("baselines", "sandbox")
        and getattr(config.options, field.name) != getattr(default, field.name)
    ]
    return [f"{name}={getattr(config.options, name)!r}" for name in names]


def _search_words(config: RunConfig) -> list[str]:
    constants = ",".join(f"{name}={_number(value)}" for name, value in config.constants.items())
    policy = f"{config.policy}:{constants}" if constants else config.policy
    models = config.models
    words = ["--model", models["code"]] if "code" in models else ["--author", config.author]
    words += ["--policy", policy, "--seed", str(config.seed)]
    words += ["--concurrency", str(config.concurrency), "--tune-points", str(config.tune_points)]
    words += ["--race", str(config.race)] if config.race else []
    if config.finalists != RunConfig.finalists:
        words += ["--finalists", str(config.finalists)]
    for language in config.languages:
        words += ["--language", language]
    words += ["--objective", config.objective] if config.objective != "speed" else []
    if config.speed_tolerance != RunConfig.speed_tolerance:
        words += ["--speed-tolerance", _number(100 * config.speed_tolerance)]
    for role in dict.fromkeys((*models, *config.roles)):
        settings = {"model": models[role]} if role in models and role != "code" else {}
        settings |= config.roles[role].overrides() if role in config.roles else {}
        if settings:
            words += ["--role", f"{role}:{','.join(f'{key}={value}' for key, value in settings.items())}"]
    for model, price in config.prices.items():
        words += ["--price", f"{model}={price}"]
    words += [] if config.temperature else ["--no-temperature"]
    words += [] if config.compile_seed else ["--no-compile-seed"]
    words += [] if config.knowledge else ["--no-knowledge"]
    default = Limits()
    for field, name in _BUDGET.items():
        value = getattr(config.limits, field)
        # a priced model gets a limit in dollars by default, so 0 must be given too
        if value != getattr(default, field) or field == "candidates" or (field == "dollars" and models):
            words += ["--budget", f"{name}={_number(value)}"]
    if config.limits.stop_at_floor != default.stop_at_floor:
        words += ["--stop-at-floor", _number(config.limits.stop_at_floor)]
    return words


def _number(value: float) -> str:
    """The number for a command line: nine decimals at most, no exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".")
