"""Authors as the command line names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernelpro.authors.author import Author
from kernelpro.authors.files import Files
from kernelpro.records import BadInput, RunConfig

if TYPE_CHECKING:
    from kernelpro.llm.question import Model, Question, Reply
    from kernelpro.llm.settings import Settings

T = TypeVar("T")

_ROLES = ("design", "plan", "code", "debug")
_TEMPERATURES = {"design": 0.1, "plan": 0.8, "code": 0.1, "debug": 0.1}
"""STARK's: planners vary, coders and debuggers do not. `--no-temperature` is for models that take none."""

_COMMANDS = {
    "search": 'kernelpro search "WORDS" --in cutlass',
    "grep": 'kernelpro search "PATTERN" --regex --in cutlass',
    "outline": "kernelpro search --outline PATH",
    "read": "kernelpro search --read PATH:10-60",
    "definition": "kernelpro search --def SYMBOL",
    "uses": "kernelpro search --uses SYMBOL",
}
"""How whoever answers through files has the same."""


def author(config: RunConfig, folder: Path, report: Callable[[str], None] = lambda line: None) -> Author:
    """`playbook`: our own templates, no model; `playbook:fixed` and `playbook:random`: the same without a look at the
    findings; `files:DIR`: the candidates in a folder; `team`: plan, code and debug agents with the run's models.

    `folder` is the run's: transcripts are kept there, and what they cost counts against the budget.
    """
    kind, _, rest = config.author.partition(":")
    if kind == "files" and rest:
        return Files(Path(rest))
    if kind == "playbook" and rest in ("", "fixed", "random"):
        from kernelpro.authors.playbook.playbook import Playbook

        return Playbook(rest or "findings", config.seed)  # type: ignore[arg-type]
    if kind == "team":
        return _team(config, folder, report)
    raise BadInput(f"--author {config.author}: not an author; there are playbook, team and files:DIR")


def absolute(config: RunConfig, home: Path) -> RunConfig:
    """With whole paths in the names of author and models: a run that is resumed from elsewhere reads the same files.

    `home` is where its runs are: `replay:` may name one.
    """
    from kernelpro.llm import by_name

    kind, _, rest = config.author.partition(":")
    author = f"files:{Path(rest).expanduser().absolute()}" if kind == "files" and rest else config.author
    return replace(
        config,
        author=author,
        models={role: by_name.absolute(spec, home) for role, spec in config.models.items()},
    )


def _team(config: RunConfig, folder: Path, report: Callable[[str], None]) -> Author:
    from kernelpro.authors.team import templates
    from kernelpro.authors.team.team import Models, Team
    from kernelpro.library.tools import TOOLS
    from kernelpro.llm.by_name import model
    from kernelpro.llm.cap import Purse
    from kernelpro.llm.question import Tool
    from kernelpro.llm.transcripts import FILE, Transcripts

    _check_roles(config)
    purse = Purse(config.limits.dollars, config.limits.tokens)
    transcripts = Transcripts(folder / FILE, templates.version())
    purse.recall(transcripts.spent())
    made, tell = {}, _once(report)
    for role in _ROLES:
        spec = config.models.get(role) or config.models["code"]
        made[role] = model(
            spec, _settings(config, role, folder.name, tell), purse, transcripts, folder.parent
        )
    tools = tuple(
        Tool(t.name, t.description, t.parameters, t.function, _COMMANDS.get(t.name, "")) for t in TOOLS
    )
    return Team(Models(made["plan"], _Writer(made["design"], made["code"]), made["debug"]), tools, "team")


def _check_roles(config: RunConfig) -> None:
    if strange := [role for role in (*config.models, *config.roles) if role not in _ROLES]:
        raise BadInput(f"--role {strange[0]}: not a role; there are {', '.join(_ROLES)}")
    if not config.models.get("code"):
        raise BadInput(
            "--author team needs a model: --model PROVIDER:MODEL, http://HOST:PORT/v1#MODEL, inbox:DIR or replay:RUN"
        )
    if "design" in config.models:
        raise BadInput("--role design:model: whoever writes code writes designs too; name it with --model")


def _settings(config: RunConfig, role: str, run: str, tell: Callable[[str], None]) -> Settings:
    """What was said of the role, else what is usual; designs are asked for as code is, unless something else was said."""
    from kernelpro.llm.prices import Price
    from kernelpro.llm.settings import Settings

    said = config.roles["code"].given() if role == "design" and "code" in config.roles else {}
    said |= config.roles[role].given() if role in config.roles else {}
    usual = {"temperature": _TEMPERATURES[role]} if config.temperature else {}
    prices = {name: Price.parse(text) for name, text in config.prices.items()}
    try:
        return Settings(**usual | said, prices=prices, wait=config.wait, scope=run, progress=tell)
    except BadInput as error:
        raise BadInput(f"--role {role}: {error}") from None


def _once(report: Callable[[str], None]) -> Callable[[str], None]:
    """Roles that share a model have the same to say."""
    told: set[str] = set()

    def tell(line: str) -> None:
        if line not in told:
            told.add(line)
            report(line)

    return tell


class _Writer:
    """One model for designs and code, which may be asked in different ways."""

    def __init__(self, design: Model, code: Model):
        self._design, self._code = design, code

    @property
    def name(self) -> str:
        return self._code.name

    async def ask(self, question: Question[T]) -> Reply[T]:
        return await (self._design if question.role == "design" else self._code).ask(question)
