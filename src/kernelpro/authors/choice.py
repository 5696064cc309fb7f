"""Choose the author of a run and the spending limit of its models. The command line and the Python API share
these rules."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelpro.llm.prices import Price
from kernelpro.llm.providers import PROVIDERS, Pricing, connect
from kernelpro.records import BadInput
from kernelpro.records.base import did_you_mean

MODEL_VARIABLE = "KERNELPRO_MODEL"
"""The environment variable that names the model of all runs, or `playbook`."""
DEFAULT_DOLLARS = 5.0
"""A run with a priced model stops at this cost unless its budget says otherwise."""

_INSTALL = "pip install -e '.[llm]' in the clone of KernelPro"
_NO_LLM = "to use no LLM: --author playbook"
_USE_LLM = (
    f"to use an LLM: {_INSTALL} and set a provider's key (ANTHROPIC_API_KEY, OPENAI_API_KEY, ...), "
    f"or --model inbox:DIR to answer through files; {MODEL_VARIABLE} names a model for all runs"
)


@dataclass(frozen=True)
class AuthorChoice:
    """The author of a run and its models by role."""

    author: str
    models: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    """One line for the user: who writes, why, and how to choose another author."""


def choose_author(
    author: str | None,
    model: str,
    role_models: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AuthorChoice:
    """The author and the models by role: those given, else KERNELPRO_MODEL, else a provider whose key is set,
    else the playbook. `role_models` overrides the model of single roles. Raises BadInput if the options
    contradict each other."""
    roles = dict(role_models or {})
    if not isinstance(author, str | None) or not isinstance(model, str):
        wrong = author if isinstance(model, str) else model
        raise BadInput(f"an author and a model are given by name, not as a {type(wrong).__name__}")
    if author:
        kind, known = author.partition(":")[0], ("playbook", "files")
        if kind not in known:
            hint = did_you_mean(kind, known)
            raise BadInput(
                f"--author {author}{hint}: use playbook or files:DIR; choose an LLM with --model SPEC"
            )
        if model or roles:
            raise BadInput(f"--author {author} uses no model: leave out --author, or --model and --role")
        return AuthorChoice(author, {}, f"author: {author}; {_USE_LLM}")
    choice = _choose_model(model or roles.get("code", ""), environment)
    if roles and choice.author != "team":
        raise BadInput("--role ROLE:model=SPEC needs a main model as well: add --model SPEC")
    return AuthorChoice(choice.author, choice.models | roles, choice.summary)


def _choose_model(model: str, environment: Mapping[str, str]) -> AuthorChoice:
    if model:
        return AuthorChoice("team", {"code": model}, f"author: {model}; {_NO_LLM}")
    if configured := environment.get(MODEL_VARIABLE):
        if configured.partition(":")[0] == "playbook":
            return AuthorChoice(configured, {}, f"author: {configured} (from {MODEL_VARIABLE}); {_USE_LLM}")
        return AuthorChoice(
            "team", {"code": configured}, f"author: {configured} (from {MODEL_VARIABLE}); {_NO_LLM}"
        )
    for name, vendor in PROVIDERS.items():
        key = next((key for key in vendor.keys if environment.get(key)), None)
        if key is None:
            continue
        if importlib.util.find_spec("pydantic_ai") is None:
            return AuthorChoice("playbook", {}, f"author: playbook; {key} is set: to use it, {_INSTALL}")
        if not vendor.default_model:
            hint = f"{key} is set: to use it, choose a model with --model {name}:MODEL"
            return AuthorChoice("playbook", {}, f"author: playbook; {hint}")
        spec = f"{name}:{vendor.default_model}"
        return AuthorChoice("team", {"code": spec}, f"author: {spec} (because {key} is set); {_NO_LLM}")
    return AuthorChoice("playbook", {}, f"author: playbook; {_USE_LLM}")


def cap_dollars(dollars: float | None, models: Mapping[str, str], prices: Mapping[str, str]) -> float:
    """The spending limit of a run in US dollars: `dollars` if given (0: no limit), else DEFAULT_DOLLARS if
    one of its models has a price, else no limit.

    A model has a price if the user gave one, the provider reports it, or the price table knows it.
    """
    if dollars is not None:
        return dollars
    return DEFAULT_DOLLARS if any(_is_priced(spec, prices) for spec in set(models.values())) else 0.0


def _is_priced(spec: str, prices: Mapping[str, str]) -> bool:
    kind = spec.partition(":")[0]
    if "://" not in spec and kind not in PROVIDERS:
        return False
    model = connect(spec)
    price = prices.get(spec) or prices.get(model.model_name)
    return Pricing(Price.parse(price) if price else None, model.system, model.model_name).known
