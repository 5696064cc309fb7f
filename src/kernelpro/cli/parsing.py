"""Convert option values to the engine's types: efforts, baselines, budgets, roles and prices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kernelpro.api import BUDGET_PRESETS
from kernelpro.cli.options import BaselineOptions, JudgeEffortOptions
from kernelpro.llm.prices import Price
from kernelpro.records import BASELINES, BadInput, Effort, Limits, Options, Role

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LIMITS = {
    "candidates": "candidates",
    "dollars": "dollars",
    "tokens": "tokens",
    "wall": "wall_seconds",
    "device": "device_seconds",
}


def judge_effort(options: JudgeEffortOptions) -> Effort:
    """The effort that --quick and --full select."""
    if options.quick and options.full:
        raise BadInput("--quick and --full exclude each other: give one")
    return "quick" if options.quick else "full" if options.full else "normal"


def select_baselines(options: BaselineOptions, may_be_empty: bool = False) -> tuple[str, ...]:
    """The default baselines, without those of --no-baseline and with those of --baseline."""
    names = {*Options().baselines} - {*options.no_baseline} | {*options.baseline}
    if not names and not may_be_empty:
        raise BadInput("--no-baseline: candidates need at least one baseline to be compared with")
    return tuple(name for name in BASELINES if name in names)


def parse_budget(texts: Sequence[str], base: Limits, stop_at_floor: float | None = None) -> Limits:
    """Apply `quick`, `candidates=75`, `wall=2h` ... to `base`; later texts override earlier ones."""
    if stop_at_floor is not None:
        base = replace(base, stop_at_floor=stop_at_floor)
    for text in texts:
        if text in BUDGET_PRESETS:
            base = replace(base, candidates=BUDGET_PRESETS[text])
            continue
        name, _, value = text.partition("=")
        amount = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d+)?)([smhd]?)", value)
        number = float(amount[1]) * _SECONDS[amount[2]] if amount else math.inf
        has_unit = bool(amount and amount[2])
        if name not in _LIMITS or not math.isfinite(number) or (has_unit and name not in ("wall", "device")):
            raise BadInput(
                f"--budget {text}: use {', '.join(BUDGET_PRESETS)}, or NAME=NUMBER with "
                f"{', '.join(_LIMITS)}; "
                "wall and device take a unit: 90s, 30m, 2h, 1d"
            )
        whole = name in ("candidates", "tokens")
        base = replace(base, **{_LIMITS[name]: int(number) if whole else number})  # type: ignore[arg-type]
    return base


def gives_dollars(texts: Sequence[str]) -> bool:
    """Whether a budget sets a limit in dollars."""
    return any(text.startswith("dollars=") for text in texts)


def _non_empty(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


_ROLE_KEYS: dict[str, Callable[[str], Any]] = {
    "model": _non_empty,
    "temperature": float,
    "effort": _non_empty,
    "max_output_tokens": int,
    "timeout": float,
}


def parse_roles(texts: Sequence[str]) -> tuple[dict[str, str], dict[str, Role]]:
    """Models and settings by role, from texts like `plan:model=SPEC,effort=high`. Later values override
    earlier ones."""
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        role, _, rest = text.partition(":")
        for part in rest.split(","):
            key, _, value = part.partition("=")
            try:
                settings.setdefault(role, {})[key] = _ROLE_KEYS[key](value)
            except (KeyError, ValueError):
                raise BadInput(
                    f"--role {text}: use ROLE:KEY=VALUE,... with keys {', '.join(_ROLE_KEYS)}, not {part!r}"
                ) from None
    models = {role: values.pop("model") for role, values in settings.items() if "model" in values}
    return models, {role: Role(**values) for role, values in settings.items() if values}


def parse_prices(texts: Sequence[str]) -> dict[str, str]:
    """Prices by model, from texts like `gpt-x=1.25/10`: INPUT/OUTPUT in dollars per million tokens."""
    prices = {}
    for text in texts:
        model, _, price = text.rpartition("=")
        if not model:
            raise BadInput(
                f"--price {text}: use MODEL=INPUT/OUTPUT in dollars per million tokens, like gpt-x=1.25/10"
            )
        Price.parse(price)
        prices[model] = price
    return prices
