"""Settings of requests to models, with defaults that suit kernels."""

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
    """None means the provider's default; many reasoning models accept no other."""
    effort: ReasoningEffort | None = None
    """Reasoning effort, if the model supports it; None means the provider's default."""
    max_output_tokens: int = 0
    """Limit for one answer, including thinking; 0 means the model's limit."""
    timeout: float = 900.0
    """Time limit in seconds for one request. A kernel with a long chain of thought takes minutes."""
    retries: int = 5
    """Number of retries after timeouts, dropped connections, 429 and 5xx: about a minute with this
    backoff."""
    backoff: float = 2.0
    """Seconds before the first retry, doubled for each further one, with jitter. The server's Retry-After
    takes precedence."""
    max_wait: float = 120.0
    """Limit in seconds for a single wait. If a server asks for more, the question fails."""
    reasks: int = 2
    """How many times the model is asked to correct a malformed answer."""
    tool_rounds: int = 12
    """Maximum number of rounds with tool calls per question."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices by model name, with or without the provider. They take precedence over the library's table."""
    wait: bool = False
    """For an inbox: wait for the answer instead of raising AnswerOutstanding."""
    poll: float = 1.0
    """For an inbox: seconds between polls."""
    scope: str = ""
    """For an inbox: the run's name, with which its file names begin."""
    progress: Callable[[str], None] = field(default=lambda line: None)
    """Called with lines on progress, and with notes on answers."""

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
