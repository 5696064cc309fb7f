"""The purse: what may be spent, by all roles together, and what was.

A request is let through if what is spent, what requests in flight have announced for their prompts, and the estimate of
its own prompt stay within the caps. What it writes is known only afterwards: so a cap can be passed by the answers that
were in flight when it was reached, and by nothing else. Amounts are exact.
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
"""English has about four, CUDA and Triton source a little over three: an estimate by this is rather too high."""


def estimate(characters: int) -> int:
    """Tokens of a text of this length."""
    return -(-characters // _CHARACTERS_PER_TOKEN)


class _Account:
    def __init__(self) -> None:
        self.money, self.tokens_in, self.tokens_out, self.calls = Decimal(0), 0, 0, 0

    def add(self, money: Decimal, tokens_in: int, tokens_out: int, calls: int) -> None:
        self.money += money
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        self.calls += calls

    @property
    def cost(self) -> Cost:
        return Cost(float(self.money), self.tokens_in, self.tokens_out, self.calls)


class Purse:
    """Caps in dollars and tokens (0: none), shared by everything that asks. Safe to use from several threads."""

    def __init__(self, money: float | Decimal = 0, tokens: int = 0) -> None:
        self._money, self._tokens = Decimal(str(money)), tokens
        self._all = _Account()
        self._roles: defaultdict[str, _Account] = defaultdict(_Account)
        self._keys: defaultdict[str, _Account] = defaultdict(_Account)
        self._announced_money, self._announced_tokens = Decimal(0), 0
        self._lock = Lock()

    @property
    def spent(self) -> Cost:
        return self._all.cost

    @property
    def money(self) -> Decimal:
        """Dollars spent, exact."""
        return self._all.money

    @property
    def caps_money(self) -> bool:
        return self._money > 0

    def by_role(self) -> dict[str, Cost]:
        return {role: account.cost for role, account in self._roles.items()}

    def by_key(self) -> dict[str, Cost]:
        return {key: account.cost for key, account in self._keys.items()}

    @contextmanager
    def request(self, tokens: int, money: Decimal) -> Iterator[None]:
        """Announce a request by the estimate of its prompt; raises CapReached. Ends when the request does."""
        with self._lock:
            self._check(tokens, money)
            self._announced_tokens += tokens
            self._announced_money += money
        try:
            yield
        finally:
            with self._lock:
                self._announced_tokens -= tokens
                self._announced_money -= money

    def pay(self, role: str, key: str, money: Decimal, tokens: Tokens) -> None:
        """Count one request. The money is gone, so this never refuses."""
        self._count(role, key, money, tokens.input, tokens.output, 1)

    def recall(self, spent: Iterable[tuple[str, str, Decimal, Cost]]) -> None:
        """Count what earlier sittings spent, as `Transcripts.spent` gives it: role, key, money, the rest."""
        for role, key, money, cost in spent:
            self._count(role, key, money, cost.tokens_in, cost.tokens_out, cost.calls)

    def _count(
        self, role: str, key: str, money: Decimal, tokens_in: int, tokens_out: int, calls: int
    ) -> None:
        with self._lock:
            for account in (self._all, self._roles[role], self._keys[key]):
                account.add(money, tokens_in, tokens_out, calls)

    def _check(self, tokens: int, money: Decimal) -> None:
        used, ahead = self._all.tokens_in + self._all.tokens_out, tokens + self._announced_tokens
        if self._tokens and used + ahead > self._tokens:
            raise CapReached(
                f"the cap of {self._tokens:,} tokens is reached: {used:,} are spent, about {ahead:,} are asked for"
            )
        needed = money + self._announced_money
        if self._money and (self._all.money >= self._money or self._all.money + needed > self._money):
            spent = self._all.money
            raise CapReached(
                f"the cap of ${self._money:,.2f} is reached: ${spent:,.4f} is spent, about ${needed:,.4f} is asked for"
            )
