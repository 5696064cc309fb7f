"""Exact cost of requests, in decimal dollars:

    ((input - cache_read - cache_written) * price.input + cache_read * price.cached
     + cache_written * price.cache_write + output * price.output) / 1e6

This formula applies to prices that the user sets. Other models are billed by the library's price table, which
also has tiers.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from kernelpro.records import BadInput

MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class Tokens:
    """Token usage of one request."""

    input: int = 0
    """The whole prompt, cached or not."""
    output: int = 0
    """Everything generated, including thinking."""
    cache_read: int = 0
    """Input tokens read from the cache."""
    cache_written: int = 0
    """Input tokens written to the cache."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    """The price of cache reads; None means the price of input."""
    cache_write: Decimal | None = None
    """The price of cache writes; None means the price of input."""

    @classmethod
    def parse(cls, text: str) -> Price:
        """Parse `1.25/10` or `1.25/10/0.125`: input, output and cached input."""
        try:
            values = [Decimal(part) for part in text.split("/")]
        except InvalidOperation:
            values = []
        if not 2 <= len(values) <= 3 or not all(value.is_finite() and value >= 0 for value in values):
            raise BadInput(
                f"price {text}: use INPUT/OUTPUT or INPUT/OUTPUT/CACHED in dollars per million tokens, like"
                " 1.25/10"
            )
        return cls(*values)

    def cost(self, tokens: Tokens) -> Decimal:
        """Return the cost of a request in dollars."""
        cached = self.input if self.cached is None else self.cached
        write = self.input if self.cache_write is None else self.cache_write
        fresh = tokens.input - tokens.cache_read - tokens.cache_written
        return (
            fresh * self.input
            + tokens.cache_read * cached
            + tokens.cache_written * write
            + tokens.output * self.output
        ) / MILLION
