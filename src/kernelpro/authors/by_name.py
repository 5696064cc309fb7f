"""Create authors from a run's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernelpro.authors.author import Author
from kernelpro.authors.files import FilesAuthor
from kernelpro.records import BadInput, RunConfig
from kernelpro.records.base import did_you_mean

if TYPE_CHECKING:
    from kernelpro.llm.question import Model, Question, Reply
    from kernelpro.llm.settings import ModelSettings

T = TypeVar("T")

_ROLES = ("design", "plan", "code", "debug")
_TEMPERATURES = {"design": 0.1, "plan": 0.8, "code": 0.1, "debug": 0.1}
"""STARK's values: plans shall vary, code and repairs shall not. `--no-temperature` sends none, for models
that reject it."""

_SHELL_COMMANDS = {
    "search": 'kernelpro code-search "WORDS" --in cutlass',
    "grep": 'kernelpro code-search "PATTERN" --regex --in cutlass',
    "outline": "kernelpro code-search --outline PATH",
    "read": "kernelpro code-search --read PATH:10-60",
    "definition": "kernelpro code-search --def SYMBOL",
    "uses": "kernelpro code-search --uses SYMBOL",
}
"""Shell commands that replace the tools for a coding agent, which answers through files."""


def create_author(
    config: RunConfig, folder: Path, report: Callable[[str], None] = lambda line: None
) -> Author:
    """Create the author that a run's configuration names.

    `playbook` writes kernels without a model; `playbook:fixed` and `playbook:random` ignore the findings (for
    ablations). `files:DIR` offers the candidates of a folder. `team` is the plan, code and debug agents with
    the run's models. Transcripts are stored in the run's `folder`; the cost of earlier ones counts against
    the budget.
    """
    kind, _, rest = config.author.partition(":")
    if kind == "files" and rest:
        return FilesAuthor(Path(rest))
    if kind == "playbook" and rest in ("", "fixed", "random"):
        from kernelpro.authors.playbook.playbook import Playbook

        return Playbook(rest or "findings", config.seed)  # type: ignore[arg-type]
    if kind == "team":
        return _create_team(config, folder, report)
    hint = did_you_mean(config.author, ("playbook", "playbook:fixed", "playbook:random"))
    raise BadInput(
        f"--author {config.author}{hint}: unknown author; use playbook or files:DIR, or --model for an LLM"
    )


def with_absolute_paths(config: RunConfig, home: Path) -> RunConfig:
    """Return the configuration with absolute paths of author and models, so that a run can be resumed from
    another folder. `home` is the folder of the runs, which `replay:RUN` may refer to."""
    from kernelpro.llm import by_name

    kind, _, rest = config.author.partition(":")
    author = f"files:{Path(rest).expanduser().absolute()}" if kind == "files" and rest else config.author
    return replace(
        config,
        author=author,
        models={role: by_name.with_absolute_path(spec, home) for role, spec in config.models.items()},
    )


def _create_team(config: RunConfig, folder: Path, report: Callable[[str], None]) -> Author:
    from kernelpro.authors.team import templates
    from kernelpro.authors.team.team import RoleModels, Team
    from kernelpro.code_search.tools import TOOLS
    from kernelpro.llm.by_name import create_model
    from kernelpro.llm.cap import SpendingCap
    from kernelpro.llm.question import Tool
    from kernelpro.llm.transcripts import FILE, Transcripts

    _check_roles(config)
    cap = SpendingCap(config.limits.dollars, config.limits.tokens)
    transcripts = Transcripts(folder / FILE, templates.version())
    cap.restore(transcripts.spent())
    models, report_once = {}, _without_repeats(report)
    for role in _ROLES:
        spec = config.models.get(role) or config.models["code"]
        models[role] = create_model(
            spec, _settings(config, role, folder.name, report_once), cap, transcripts, folder.parent
        )
    tools = tuple(
        Tool(t.name, t.description, t.parameters, t.function, _SHELL_COMMANDS.get(t.name, "")) for t in TOOLS
    )
    return Team(
        RoleModels(models["plan"], _DesignAndCodeModel(models["design"], models["code"]), models["debug"]),
        tools,
        "team",
        cap,
    )


def _check_roles(config: RunConfig) -> None:
    if unknown := [role for role in (*config.models, *config.roles) if role not in _ROLES]:
        raise BadInput(f"--role {unknown[0]}: unknown role; the roles are {', '.join(_ROLES)}")
    if not config.models.get("code"):
        raise BadInput(
            "no model given: use --model PROVIDER:MODEL, http://HOST:PORT/v1#MODEL, inbox:DIR or replay:RUN"
        )
    if "design" in config.models:
        raise BadInput(
            "--role design:model: the model that writes code also writes designs; set it with --model"
        )


def _settings(config: RunConfig, role: str, run: str, report_once: Callable[[str], None]) -> ModelSettings:
    """Return the settings of a role: the user's values, else defaults. `design` inherits unset values from
    `code`."""
    from kernelpro.llm.prices import Price
    from kernelpro.llm.settings import ModelSettings

    given = config.roles["code"].overrides() if role == "design" and "code" in config.roles else {}
    given |= config.roles[role].overrides() if role in config.roles else {}
    defaults = {"temperature": _TEMPERATURES[role]} if config.temperature else {}
    prices = {name: Price.parse(text) for name, text in config.prices.items()}
    try:
        return ModelSettings(
            **defaults | given, prices=prices, wait=config.wait, scope=run, progress=report_once
        )
    except BadInput as error:
        raise BadInput(f"--role {role}: {error}") from None


def _without_repeats(report: Callable[[str], None]) -> Callable[[str], None]:
    """Drop repeated lines: roles that share a model report the same."""
    seen: set[str] = set()

    def report_once(line: str) -> None:
        if line not in seen:
            seen.add(line)
            report(line)

    return report_once


class _DesignAndCodeModel:
    """One model for designs and code, with different settings for each."""

    def __init__(self, design: Model, code: Model):
        self._design, self._code = design, code

    @property
    def name(self) -> str:
        return self._code.name

    async def ask(self, question: Question[T]) -> Reply[T]:
        return await (self._design if question.role == "design" else self._code).ask(question)
