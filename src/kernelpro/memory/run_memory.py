"""What a run has learned: attempts, errors with their fixes, and facts; a digest of them for prompts.

Events are only added; everything else is computed from them, so that a resumed run knows as much as before.

The fix of an error: on a path of attempts from a failing node to a working one, the last step from a node
that shows the error's signature to one that does not.

The digest takes lines from its sections in rounds: in each round, every section contributes a fixed number of
its best remaining lines, until the budget is spent. Lines that do not fit are left out; shorter ones may
still fit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kernelpro.memory.wording import error_line, error_signature, method_key, summarize

_CHARACTERS_PER_TOKEN = 3.5
"""Technical English has about four; this stays below the budget."""
_MAX_LINE = 400
"""Characters: one long message must not displace ten short ones."""
_MIN_SPEEDUP = 1.02
"""Smaller speed-ups are within the noise of two timings."""
_CONFIRMED_SHARE = 0.5
"""A hypothesis is confirmed if the log speed-up is at least this share of the expected one."""


@dataclass(frozen=True)
class Attempt:
    """A node that was tried. Exactly one of `gain` and `failure` is set."""

    node: int
    """Its number in the tree. A later attempt with the same number replaces the earlier one."""
    parent: int
    method: str
    """The plan in one sentence."""
    hypothesis: str = ""
    gain: float | None = None
    """Speed-up over its parent; over the fastest baseline if it is fresh."""
    failure: str = ""
    """Status and reason, if it does not work."""
    expected_speedup: float = 0.0
    """Speed-up over its parent, by its author's hypothesis; 0: not stated."""
    is_fresh: bool = False
    """Whether its parent has no time: it is a new design, or the fix of a failure."""
    ms: float | None = None
    """Its comparable time (records/comparable.py)."""

    def __post_init__(self) -> None:
        if (self.gain is None) == (not self.failure):
            raise ValueError("an attempt has either a gain or a failure")

    @property
    def worth(self) -> float:
        """The gain; 0 for a failure."""
        return self.gain or 0.0

    @property
    def confirmed(self) -> bool | None:
        """Whether the measurement confirms the hypothesis; None if that is unknown."""
        if self.expected_speedup <= 1 or self.gain is None or self.is_fresh:
            return None
        return math.log(self.gain) >= _CONFIRMED_SHARE * math.log(self.expected_speedup)


@dataclass(frozen=True)
class NodeError:
    """The message with which a node's build or run failed."""

    node: int
    message: str


@dataclass(frozen=True)
class Fact:
    """What an author learned: a signature, a path, a measurement."""

    text: str
    node: int | None = None


MemoryEvent = Attempt | NodeError | Fact


@dataclass(frozen=True)
class AttemptGroups:
    """Attempts by outcome."""

    gains: tuple[Attempt, ...]
    """Clearly faster than their parents (fresh ones: than every baseline), best first."""
    failures: tuple[Attempt, ...]
    """Failures, then attempts that are not faster, slowest first."""


@dataclass(frozen=True)
class RecurringError:
    """All errors with one signature."""

    signature: str
    example: str
    """The last message in full."""
    count: int
    fix: str
    """The method that fixed it last; empty if none has."""


class RunMemory:
    """The events of a run, and what can be computed from them."""

    def __init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        self._errors: list[tuple[str, NodeError]] = []
        """Each with its signature."""
        self._facts: dict[str, Fact] = {}

    def add(self, event: MemoryEvent) -> None:
        """Remember an event."""
        if isinstance(event, Attempt):
            self._attempts[event.node] = event
        elif isinstance(event, NodeError):
            self._errors.append((error_signature(event.message), event))
        else:
            self._facts.setdefault(" ".join(event.text.split()).lower(), event)

    # --- questions -----------------------------------------------------------------------------------

    def attempts_from(self, node: int, skip: Collection[int] = ()) -> AttemptGroups:
        """Attempts whose parent is this node, except the nodes in `skip`."""
        attempts = self._attempts.values()
        return _group(a for a in attempts if a.parent == node and a.node not in skip)

    def attempts_elsewhere(self, node: int, skip: Collection[int] = ()) -> AttemptGroups:
        """Attempts whose parent is another node, except the nodes in `skip`."""
        attempts = self._attempts.values()
        return _group(a for a in attempts if a.parent != node and a.node not in skip)

    def errors(self) -> tuple[RecurringError, ...]:
        """Recurring errors: most frequent first, then latest first."""
        fixes = self._fixes()
        by_signature: dict[str, list[NodeError]] = {}
        latest: dict[str, int] = {}
        for index, (signature, error) in enumerate(self._errors):
            by_signature.setdefault(signature, []).append(error)
            latest[signature] = index
        recurring = [
            RecurringError(signature, errors[-1].message, len(errors), fixes.get(signature, ""))
            for signature, errors in by_signature.items()
        ]
        return tuple(sorted(recurring, key=lambda error: (-error.count, -latest[error.signature])))

    def facts(self) -> tuple[Fact, ...]:
        """Facts without duplicates, latest first."""
        return tuple(reversed(self._facts.values()))

    def _fixes(self) -> dict[str, str]:
        """By error signature, the method that fixed it last."""
        signatures: defaultdict[int, set[str]] = defaultdict(set)
        for signature, error in self._errors:
            signatures[error.node].add(signature)
        fixes = {}
        for attempt in self._attempts.values():
            if attempt.failure:
                continue
            step, parent = attempt, self._attempts.get(attempt.parent)
            handled: set[str] = set()
            visited = {attempt.node}
            while parent and parent.failure and parent.node not in visited:
                visited.add(parent.node)
                fixed = signatures[parent.node] - handled - signatures[step.node]
                fixes.update(dict.fromkeys(sorted(fixed), step.method))
                handled |= signatures[parent.node]
                step, parent = parent, self._attempts.get(parent.parent)
        return fixes

    # --- as text -------------------------------------------------------------------------------------

    def digest(self, node: int, budget_tokens: int, shown: Collection[int] = ()) -> str:
        """What is most useful to an author who works on `node`, in at most this many tokens. Empty if nothing
        is known.

        `shown`: nodes that the prompt shows elsewhere. Like `node` itself, they are left out.
        """
        skip = {node, *shown}
        under, elsewhere = self.attempts_from(node, skip), self.attempts_elsewhere(node, skip)
        shares = {
            "Tried from this kernel" if node else "Designs tried": (
                4,
                _lines([*under.gains, *under.failures]),
            ),
            "Errors seen, and what fixed them": (2, [_error_line(error) for error in self.errors()]),
            "What worked in other steps": (2, _lines(elsewhere.gains)),
            "Facts": (2, [_clip(fact.text) for fact in self.facts()]),
            "What did not work in other steps": (1, _lines(elsewhere.failures)),
        }
        sections = {title: lines for title, (_, lines) in shares.items()}
        ranked = sorted(
            (index // share, list(sections).index(title), index, title)
            for title, (share, lines) in shares.items()
            for index in range(len(lines))
        )
        characters_left = int(budget_tokens * _CHARACTERS_PER_TOKEN)
        chosen: dict[str, list[int]] = {title: [] for title in sections}
        for _, _, index, title in ranked:
            cost = len(f"- {sections[title][index]}\n") + (0 if chosen[title] else len(f"{title}:\n\n"))
            if cost <= characters_left:
                characters_left -= cost
                chosen[title].append(index)
        blocks = [
            f"{title}:\n" + "\n".join(f"- {sections[title][index]}" for index in sorted(indices))
            for title, indices in chosen.items()
            if indices
        ]
        return "\n\n".join(blocks)


def _group(attempts: Iterable[Attempt]) -> AttemptGroups:
    ranked = sorted(attempts, key=lambda attempt: -attempt.worth)
    gains = [attempt for attempt in ranked if attempt.worth >= _MIN_SPEEDUP]
    return AttemptGroups(tuple(gains), tuple(sorted(ranked[len(gains) :], key=lambda attempt: attempt.worth)))


def _lines(attempts: Iterable[Attempt]) -> list[str]:
    """One line per method, in the given order: its first attempt, and how many others there were."""
    groups: dict[tuple[str, bool], list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault((method_key(attempt.method), bool(attempt.failure)), []).append(attempt)
    return [_attempt_line(group) for group in groups.values()]


def _attempt_line(group: list[Attempt]) -> str:
    first = group[0]
    outcome = f"failed: {first.failure}" if first.failure else _gain_text(first)
    tail = ""
    if len(group) > 1:
        others = (
            ""
            if first.failure
            else f", {min(a.worth for a in group):.2f}x to {max(a.worth for a in group):.2f}x"
        )
        tail = f" (tried {len(group)} times{others})"
    return _clip(f"{summarize(first.method)} -> {outcome}{tail}")


def _gain_text(attempt: Attempt) -> str:
    """The measured gain, what it is relative to, and the expected gain."""
    text = f"{attempt.ms:.4f} ms, " if attempt.ms else ""
    text += f"{attempt.gain:.2f}x as fast as " + (
        "the best baseline" if attempt.is_fresh else f"step {attempt.parent}"
    )
    if attempt.expected_speedup and not attempt.is_fresh:
        text += f"; {describe_expectation(attempt)}"
    return text


def describe_expectation(attempt: Attempt) -> str:
    """The expected speed-up, why, and whether it was confirmed."""
    mark = {True: ", confirmed", False: ", refuted", None: ""}[attempt.confirmed]
    return f"expected {attempt.expected_speedup:.2f}x{mark}" + (
        f" ({summarize(attempt.hypothesis)})" if attempt.hypothesis else ""
    )


def _error_line(error: RecurringError) -> str:
    times = f" ({error.count} times)" if error.count > 1 else ""
    fix = f"; fixed by: {summarize(error.fix)}" if error.fix else "; no fix found yet"
    room = _MAX_LINE - len(times) - min(len(fix), _MAX_LINE // 2)
    return _clip(_clip(error_line(error.example), room) + times + fix)


def _clip(text: str, longest: int = _MAX_LINE) -> str:
    """The text on one line, cut to a length."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
