"""Authors as the command line names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernelpro.authors.author import Author
from kernelpro.authors.files import Files
from kernelpro.records import BadInput, RunConfig

_ROLES = ("plan", "code", "debug")
_TEMPERATURES = {"plan": 0.8, "code": 0.1, "debug": 0.1}
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
    """`playbook`: our own templates, no model; `playbook:random`: the same without a look at the findings; `files:DIR`: the
    candidates in a folder; `team`: plan, code and debug agents with the run's models.

    `folder` is the run's: transcripts are kept there, and what they cost counts against the budget.
    """
    kind, _, rest = config.author.partition(":")
    if kind == "files" and rest:
        return Files(Path(rest))
    if config.author in ("playbook", "playbook:random"):
        from kernelpro.authors.playbook.playbook import Playbook

        return Playbook(guided=not rest)
    if kind == "team":
        return _team(config, folder, report)
    raise BadInput(f"--author {config.author}: not an author; there are playbook, team and files:DIR")


def _team(config: RunConfig, folder: Path, report: Callable[[str], None]) -> Author:
    from kernelpro.authors.team.team import Models, Team
    from kernelpro.library.tools import TOOLS
    from kernelpro.llm.by_name import model
    from kernelpro.llm.cap import Purse
    from kernelpro.llm.question import Tool
    from kernelpro.llm.settings import Settings
    from kernelpro.llm.transcripts import Transcripts

    if not config.models.get("code"):
        raise BadInput("--author team needs a model: --model PROVIDER:MODEL, http://HOST:PORT/v1#MODEL, inbox:DIR or replay:RUN")
    purse, transcripts = Purse(config.limits.money, config.limits.tokens), Transcripts(folder / "transcripts.jsonl")
    purse.recall(transcripts.spent())
    made = {}
    for role in _ROLES:
        spec = config.models.get(role) or config.models["code"]
        settings = Settings(
            temperature=_TEMPERATURES[role] if config.temperature else None, wait=config.wait, scope=folder.name, progress=report
        )
        made[role] = model(spec, settings, purse, transcripts, folder.parent)
    tools = tuple(Tool(t.name, t.description, t.parameters, t.function, _COMMANDS.get(t.name, "")) for t in TOOLS)
    return Team(Models(**made), tools, "team")
