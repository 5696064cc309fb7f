"""Policies by name."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from kernelpro.records import BadInput
from kernelpro.records.base import did_you_mean
from kernelpro.search.beam import Beam
from kernelpro.search.best_of_n import BestOfN
from kernelpro.search.choice import Choice, Policy
from kernelpro.search.epsilon_greedy import EpsilonGreedy
from kernelpro.search.greedy import Greedy
from kernelpro.search.mcts import Mcts

__all__ = ["POLICIES", "Choice", "Policy", "make_policy", "parse_policy"]

POLICIES: MappingProxyType[str, type[Policy]] = MappingProxyType(
    {kind.name: kind for kind in (Mcts, EpsilonGreedy, Beam, Greedy, BestOfN)}  # type: ignore[misc]
)


def parse_policy(text: str) -> tuple[str, dict[str, float]]:
    """Name and constants of a policy as the command line names it: `mcts`, or
    `mcts:seeds=6,exploration=0.8`."""
    name, _, rest = text.partition(":")
    constants: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            constants[key.strip()] = int(value) if value.strip().lstrip("-").isdigit() else float(value)
        except ValueError:
            raise BadInput(f"--policy {text}: {part!r} is not NAME=NUMBER") from None
    make_policy(name, **constants)
    return name, constants


def make_policy(name: str, **constants: float) -> Policy:
    """The policy with this name. Raises BadInput for an unknown name or constant, or a value out of its
    range."""
    kind = POLICIES.get(name)
    if kind is None:
        hint = did_you_mean(name, POLICIES)
        raise BadInput(f"unknown search policy {name!r}{hint}; choose one of {', '.join(POLICIES)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key, value in constants.items():
        if key not in fields:
            raise BadInput(f"policy {name} has no constant {key!r}; it has {', '.join(fields) or 'none'}")
        low, high = fields[key].metadata["low"], fields[key].metadata["high"]
        is_int = isinstance(fields[key].default, int)
        has_type = isinstance(value, int if is_int else (int, float)) and not isinstance(value, bool)
        if not has_type or not low <= value <= high:
            what = "a whole number" if is_int else "a number"
            raise BadInput(f"{key} of policy {name} must be {what} from {low} to {high}, not {value!r}")
    return kind(**constants)
