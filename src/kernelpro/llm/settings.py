"""How models are asked: what a person may set, with defaults that suit kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from kernelpro.llm.prices import Price
from kernelpro.records import BadInput

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True)
class Settings:
    temperature: float | None = None
    """None: the provider's own; many reasoning models accept no other."""
    effort: Effort | None = None
    """Reasoning effort, where the provider has it; None: the provider's own."""
    max_output_tokens: int = 0
    """Of one answer, thinking included; 0: the model's own limit."""
    timeout: float = 900.0
    """Seconds one request may take. A kernel with a long chain of thought takes minutes; a quarter of an hour is lost."""
    retries: int = 5
    """After time-outs, cut connections, 429 and 5xx. With the back-off below: about a minute of patience."""
    backoff: float = 2.0
    """Seconds before the first retry; doubled each time, with jitter. A Retry-After of the server goes before it."""
    longest_wait: float = 120.0
    """Seconds of a single wait; a server that asks for more is given up on."""
    reasks: int = 2
    """How often a malformed answer is sent back with what is wrong with it."""
    tool_rounds: int = 12
    """How often a model may call tools for one question before it has to answer."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By a model's name, with or without the provider; goes before the library's table."""
    wait: bool = False
    """Inbox: wait for the answer, instead of raising Outstanding."""
    poll: float = 1.0
    """Inbox: seconds between two looks."""
    scope: str = ""
    """Inbox: the run's name, with which the names of its files begin."""
    progress: Callable[[str], None] = field(default=lambda line: None)
    """Told, in a line, what is being waited for, and what a person should know about an answer."""

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in get_args(Effort):
            raise BadInput(f"effort {self.effort}: not one of {', '.join(get_args(Effort))}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise BadInput(f"temperature {self.temperature}: must be from 0 to 2")
        for name in ("timeout", "backoff", "longest_wait", "poll"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} {getattr(self, name)}: must be a number of seconds above 0")
        for name in ("max_output_tokens", "retries", "reasks", "tool_rounds"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} {getattr(self, name)}: must not be negative")
