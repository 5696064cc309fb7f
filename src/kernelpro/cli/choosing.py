"""Who writes, where nobody said: a model that is configured, else the playbook. And the line that says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelpro.llm.providers import PROVIDERS
from kernelpro.records import BadInput, Limits

MODEL = "KERNELPRO_MODEL"
"""The variable that names a model for all runs, as --model does."""
_PURSE = 5.0
"""Dollars that may be spent on a model that was found rather than named, unless a budget says otherwise."""

_INSTALL = "pip install -e '.[llm]' in KernelPro's clone"
_WITHOUT = "without an LLM: --author playbook"
_WITH = (
    f"for an LLM: {_INSTALL} and a provider's key (ANTHROPIC_API_KEY, OPENAI_API_KEY, ...), "
    f"or --model inbox:DIR to answer through files; {MODEL} names a model for all runs"
)


@dataclass(frozen=True)
class Chosen:
    author: str
    models: dict[str, str] = field(default_factory=dict)
    why: str = ""
    """For whoever looks on: who writes, and how somebody else would."""
    found: bool = False
    """The model was found by its key: nobody has named it."""

    def capped(self, limits: Limits) -> Limits:
        return replace(limits, dollars=_PURSE) if self.found and not (limits.dollars or limits.tokens) else limits


def require_models_to_be_of_use(author: str | None, models: dict[str, str]) -> None:
    if author and author.startswith("playbook") and models:
        raise BadInput(f"--author {author} asks no model: leave --model and --role away, or --author")


def choose(author: str | None, models: dict[str, str], environment: Mapping[str, str]) -> Chosen:
    """What was said; else a model that is named or whose key is there; else the playbook."""
    require_models_to_be_of_use(author, models)
    if author or models:
        return Chosen(author or "team", models, _said(author or "team", models))
    if named := environment.get(MODEL):
        return Chosen("team", {"code": named}, f"{named} writes ({MODEL}); {_WITHOUT}")
    library = importlib.util.find_spec("pydantic_ai") is not None
    for name, vendor in PROVIDERS.items():
        key = next((key for key in vendor.keys if environment.get(key)), None)
        if key and not library:
            return Chosen("playbook", {}, f"the playbook writes; {key} is set, but: {_INSTALL} comes first")
        if key and not vendor.model:
            return Chosen(
                "playbook",
                {},
                f"the playbook writes; {key} is set: say which model with --model {name}:MODEL",
            )
        if key:
            spec = f"{name}:{vendor.model}"
            why = f"{spec} writes ({key} is set), for at most {_PURSE:g} dollars unless --budget says otherwise; {_WITHOUT}"
            return Chosen("team", {"code": spec}, why, found=True)
    return Chosen("playbook", {}, _said("playbook", {}))


def _said(author: str, models: dict[str, str]) -> str:
    if models:
        return f"{models.get('code', author)} writes; {_WITHOUT}"
    if author.startswith("playbook"):
        return f"the playbook writes; {_WITH}"
    return f"{author} writes; {_WITHOUT}; {_WITH}"
