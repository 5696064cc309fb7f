"""`--role` and `--price`, as they are written on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelpro.llm.prices import Price
from kernelpro.records import BadInput, Role


def _word(text: str) -> str:
    if not text:
        raise ValueError("nothing")
    return text


_KEYS: dict[str, Callable[[str], Any]] = {
    "model": _word,
    "temperature": float,
    "effort": _word,
    "max_output_tokens": int,
    "timeout": float,
}


def roles(texts: Sequence[str]) -> tuple[dict[str, str], dict[str, Role]]:
    """`plan:effort=high,temperature=0.7`: the models that were named, and how each role is asked. A later word goes before."""
    said: dict[str, dict[str, Any]] = {}
    for text in texts:
        role, _, rest = text.partition(":")
        for part in rest.split(","):
            key, _, value = part.partition("=")
            try:
                said.setdefault(role, {})[key] = _KEYS[key](value)
            except (KeyError, ValueError):
                raise BadInput(
                    f"--role {text}: say ROLE:KEY=VALUE,... with keys {', '.join(_KEYS)}, not {part!r}"
                ) from None
    models = {role: values.pop("model") for role, values in said.items() if "model" in values}
    return models, {role: Role(**values) for role, values in said.items() if values}


def prices(texts: Sequence[str]) -> dict[str, str]:
    """`gpt-x=1.25/10`: dollars per million tokens, by the model's name."""
    found = {}
    for text in texts:
        model, _, price = text.rpartition("=")
        if not model:
            raise BadInput(
                f"--price {text}: say MODEL=INPUT/OUTPUT, in dollars per million tokens, like gpt-x=1.25/10"
            )
        Price.parse(price)
        found[model] = price
    return found
