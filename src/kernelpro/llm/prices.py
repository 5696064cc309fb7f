"""Money, exactly: tokens times dollars per million, in decimal.

    money = ((in - read - written) * input + read * cached + written * cache_write + out * output) / 1e6

with `in` all tokens of the prompt, `read` those from the provider's cache, `written` those put there. A model whose
price a person gives is billed like that; others by the library's table, which knows tiers as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from kernelpro.records import BadInput

MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class Tokens:
    """What one request used."""

    input: int = 0
    """All of the prompt, cached or not."""
    output: int = 0
    """All that was written, thinking included."""
    read: int = 0
    """Of the input: from the cache."""
    written: int = 0
    """Of the input: put into the cache."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    """Read from the cache; None: like input."""
    cache_write: Decimal | None = None
    """Put into the cache; None: like input."""

    @classmethod
    def parse(cls, text: str) -> Price:
        """`1.25/10` or `1.25/10/0.125`: input, output, and cached input."""
        try:
            values = [Decimal(part) for part in text.split("/")]
        except InvalidOperation:
            values = []
        if not 2 <= len(values) <= 3 or not all(value.is_finite() and value >= 0 for value in values):
            raise BadInput(
                f"price {text}: give dollars per million tokens as INPUT/OUTPUT or INPUT/OUTPUT/CACHED, like 1.25/10"
            )
        return cls(*values)

    def of(self, tokens: Tokens) -> Decimal:
        cached = self.input if self.cached is None else self.cached
        write = self.input if self.cache_write is None else self.cache_write
        fresh = tokens.input - tokens.read - tokens.written
        return (
            fresh * self.input + tokens.read * cached + tokens.written * write + tokens.output * self.output
        ) / MILLION
