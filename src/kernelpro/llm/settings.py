"""How a model is asked: what users may set, with defaults that suit kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from kernelpro.llm.prices import Price
from kernelpro.records import BadInput

ReasoningEffort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True)
class ModelSettings:
    """Settings of one role's model."""

    temperature: float | None = None
    """None: the provider's default; many reasoning models accept no other."""
    effort: ReasoningEffort | None = None
    """Reasoning effort, if supported; None: the provider's default."""
    max_output_tokens: int = 0
    """Limit of one answer, including thinking; 0: the model's limit."""
    timeout: float = 900.0
    """Seconds for one request. A kernel with a long chain of thought takes minutes."""
    retries: int = 5
    """Retries after time-outs, dropped connections, 429 and 5xx; about a minute with the back-off below."""
    backoff: float = 2.0
    """Seconds before the first retry, doubled each time, with jitter. The server's Retry-After takes
    precedence."""
    max_wait: float = 120.0
    """Seconds of a single wait. If a server asks for more, the question fails."""
    reasks: int = 2
    """How often a malformed answer is sent back."""
    tool_rounds: int = 12
    """Rounds of tool calls per question."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By model name, with or without the provider; takes precedence over the library's table."""
    wait: bool = False
    """Inbox: wait for the answer instead of raising AnswerOutstanding."""
    poll: float = 1.0
    """Inbox: seconds between polls."""
    scope: str = ""
    """Inbox: the run's name, which prefixes its files."""
    progress: Callable[[str], None] = field(default=lambda line: None)
    """Receives progress lines and remarks on answers."""

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in get_args(ReasoningEffort):
            raise BadInput(f"effort {self.effort}: not one of {', '.join(get_args(ReasoningEffort))}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise BadInput(f"temperature {self.temperature}: must be from 0 to 2")
        for name in ("timeout", "backoff", "max_wait", "poll"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} {getattr(self, name)}: must be a number of seconds above 0")
        for name in ("max_output_tokens", "retries", "reasks", "tool_rounds"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} {getattr(self, name)}: must not be negative")
