"""Commands of a report: they are accepted, and hold all that decided the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import made_runs
import pytest
from typer.main import get_command

from kernelpro.cli import optimize
from kernelpro.cli.commands import app
from kernelpro.cli.commands.optimize import OptimizeOptions
from kernelpro.cli.parsing import parse_budget, select_baselines
from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput, Limits, Options, Role, RunConfig, Task
from kernelpro.report import collect_report, reproduce

OTHERS: dict[str, Any] = {
    "task": Task(made_runs.TASK.source, "affine", mode="eval"),
    "target": "cuda",
    "author": "files:there",
    "models": {"code": "openai:gpt-y", "plan": "openai:gpt-z"},
    "temperature": False,
    "wait": True,
    "pool": "spool:there",
    "gpu_name": "H200",
    "policy": "beam",
    "constants": {"seeds": 3},
    "limits": {
        "candidates": 9,
        "dollars": 1e-5,
        "tokens": 1234567,
        "wall_seconds": 60.5,
        "device_seconds": 5.0,
        "stop_at_floor": 0.5,
    },
    "options": {
        "effort": "quick",
        "baselines": ("compile",),
        "disabled_tripwires": ("all",),
        "min_own_share": 0.5,
        "sandbox": "process",
        "build_timeout": 1.5,
        "call_timeout": 2.5,
        "memory_gib": 3.0,
        "give_up_ratio": 4.0,
        "energy": True,
        "energy_baseline": "compile",
        "guards": False,
    },
    "concurrency": 5,
    "seed": 8,
    "tune_points": 3,
    "languages": ("cpp",),
    "compile_seed": False,
    "knowledge": False,
    "race": 2,
    "finalists": 1,
    "objective": "edp",
    "speed_tolerance": 0.05,
    "roles": {"plan": Role(effort="high", temperature=0.5)},
    "prices": {"gpt-x": "1/2"},
}
"""For every field of a run's configuration, a value that is not the default."""


def search(store: RunStore, config: RunConfig) -> tuple[str, str]:
    """What is said of the search, and its command."""
    found = reproduce.commands(store, config, config.task.precision, 7, False)
    (item,) = (item for item in found if " optimize " in item.command)
    return item.purpose, item.command


def variants() -> Iterator[tuple[str, RunConfig]]:
    usual = replace(made_runs.CONFIG, constants={})
    for field in fields(RunConfig):
        other = OTHERS[field.name]
        if field.name in ("limits", "options"):
            inner = getattr(usual, field.name)
            assert other.keys() == {part.name for part in fields(inner)}, "give each field a value in OTHERS"
            for name, value in other.items():
                yield f"{field.name}.{name}", replace(usual, **{field.name: replace(inner, **{name: value})})
        elif field.name == "author":
            yield field.name, replace(usual, author=other, models={})
        else:
            yield field.name, replace(usual, **{field.name: other})


def test_commands_hold_everything_that_decided_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made_runs.won(tmp_path)
    command, parsed = get_command(app), list[OptimizeOptions]()
    monkeypatch.setattr(optimize, "optimize_task", lambda options: parsed.append(options) or 0)
    seen = {search(store, replace(made_runs.CONFIG, constants={}))}
    for name, config in variants():
        line = search(store, config)
        assert line not in seen, f"{name} decides a run and is not in its command"
        seen.add(line)
        assert command.main(shlex.split(line[1])[1:], standalone_mode=False) == 0
        options = parsed[-1]
        assert parse_budget(options.budget, Limits(), options.stop_at_floor) == config.limits
        assert set(select_baselines(options)) == set(config.options.baselines)
    options = parsed[-1]
    assert (options.tune_points, options.price, options.model) == (12, ["gpt-x=1/2"], "openai:gpt-x")


NOT_IN_JUDGE = {"effort", "give_up_ratio", "guards", "energy_baseline"}
"""Options of the search alone, and those for which `judge` has no option on the command line."""


def test_the_command_that_judges_the_winner_holds_all_options_of_judge(tmp_path: Path) -> None:
    store, command = made_runs.won(tmp_path), get_command(app)

    def judge_command(options: Options) -> str:
        config = replace(made_runs.CONFIG, options=options)
        found = reproduce.commands(store, config, config.task.precision, 7, False)
        return next(item.command for item in found if " judge " in item.command)

    usual = judge_command(Options())
    for name, value in OTHERS["options"].items():
        line = judge_command(Options(**{name: value}))
        assert (line == usual) == (name in NOT_IN_JUDGE), f"{name}: see _judge_words in report/reproduce.py"
        with pytest.raises(BadInput, match="not found"):  # the options are accepted; there is no task.py
            command.main([*shlex.split(line)[1:]], standalone_mode=False)


def test_what_only_python_can_say_is_named(tmp_path: Path) -> None:
    store = made_runs.won(tmp_path)
    config = replace(made_runs.CONFIG, options=Options(effort="quick", min_own_share=0.5))
    what, _ = search(store, config)
    assert what == "Search again; from Python only: effort='quick', min_own_share=0.5"
    commands = {item.purpose: item.command for item in collect_report(store).reproduce}
    assert commands["Judge the winner again, at full length"].startswith(
        "kernelpro judge task.py winner.py --full --target cpu"
    )
    assert "--policy greedy:seeds=2" in commands["Search again"]
