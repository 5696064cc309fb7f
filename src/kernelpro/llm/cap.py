"""The spending cap in dollars and tokens, shared by all roles of a run.

A request may start if the amount spent, the estimated prompts of all requests in flight and the estimate of
its own prompt together stay within the cap. The length of an answer is known only afterwards: only answers
that are in flight when the cap is reached can exceed it. Amounts are exact decimals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from threading import Lock

from kernelpro.llm.prices import Tokens
from kernelpro.llm.question import CapReached
from kernelpro.records import Cost

_CHARACTERS_PER_TOKEN = 3
"""English has about four, CUDA and Triton source a little over three: estimates tend to be too high."""


def estimate_tokens(characters: int) -> int:
    """Estimate the number of tokens of a text with this many characters."""
    return -(-characters // _CHARACTERS_PER_TOKEN)


class _Account:
    def __init__(self) -> None:
        self.dollars, self.tokens_in, self.tokens_out, self.calls = Decimal(0), 0, 0, 0

    def add(self, dollars: Decimal, tokens_in: int, tokens_out: int, calls: int) -> None:
        self.dollars += dollars
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        self.calls += calls

    @property
    def cost(self) -> Cost:
        return Cost(float(self.dollars), self.tokens_in, self.tokens_out, self.calls)


class SpendingCap:
    """Limits in dollars and tokens (0 means no limit). Thread-safe."""

    def __init__(self, dollars: float | Decimal = 0, tokens: int = 0) -> None:
        self._max_dollars, self._max_tokens = Decimal(str(dollars)), tokens
        self._total = _Account()
        self._roles: defaultdict[str, _Account] = defaultdict(_Account)
        self._keys: defaultdict[str, _Account] = defaultdict(_Account)
        self._reserved_dollars, self._reserved_tokens = Decimal(0), 0
        self._lock = Lock()

    def set_limits(self, dollars: float, tokens: int) -> None:
        """Replace the limits. Requests in flight keep their reservation."""
        with self._lock:
            self._max_dollars, self._max_tokens = Decimal(str(dollars)), tokens

    @property
    def spent(self) -> Cost:
        """The cost so far."""
        return self._total.cost

    @property
    def dollars(self) -> Decimal:
        """The exact amount spent, in dollars."""
        return self._total.dollars

    @property
    def limits_dollars(self) -> bool:
        """Whether there is a limit in dollars."""
        return self._max_dollars > 0

    def by_role(self) -> dict[str, Cost]:
        """The cost so far by role."""
        return {role: account.cost for role, account in self._roles.items()}

    def by_key(self) -> dict[str, Cost]:
        """The cost so far by question key."""
        return {key: account.cost for key, account in self._keys.items()}

    @contextmanager
    def request(self, tokens: int, dollars: Decimal) -> Iterator[None]:
        """Reserve the estimated prompt of a request while it is in flight. Raises CapReached."""
        with self._lock:
            self._check(tokens, dollars)
            self._reserved_tokens += tokens
            self._reserved_dollars += dollars
        try:
            yield
        finally:
            with self._lock:
                self._reserved_tokens -= tokens
                self._reserved_dollars -= dollars

    def charge(self, role: str, key: str, dollars: Decimal, tokens: Tokens) -> None:
        """Count one request. Never raises CapReached, because the money is already spent."""
        self._count(role, key, dollars, tokens.input, tokens.output, 1)

    def restore(self, spent: Iterable[tuple[str, str, Decimal, Cost]]) -> None:
        """Count what earlier processes of the run spent, as `Transcripts.spent` returns it."""
        for role, key, dollars, cost in spent:
            self._count(role, key, dollars, cost.tokens_in, cost.tokens_out, cost.calls)

    def _count(
        self, role: str, key: str, dollars: Decimal, tokens_in: int, tokens_out: int, calls: int
    ) -> None:
        with self._lock:
            for account in (self._total, self._roles[role], self._keys[key]):
                account.add(dollars, tokens_in, tokens_out, calls)

    def _check(self, tokens: int, dollars: Decimal) -> None:
        used, requested = self._total.tokens_in + self._total.tokens_out, tokens + self._reserved_tokens
        if self._max_tokens and used + requested > self._max_tokens:
            raise CapReached(
                f"the cap of {self._max_tokens:,} tokens is reached: {used:,} spent, about {requested:,}"
                " requested"
            )
        needed = dollars + self._reserved_dollars
        if self._max_dollars and (
            self._total.dollars >= self._max_dollars or self._total.dollars + needed > self._max_dollars
        ):
            spent = self._total.dollars
            raise CapReached(
                f"the cap of ${self._max_dollars:,.2f} is reached: ${spent:,.4f} spent, about ${needed:,.4f}"
                " requested"
            )
