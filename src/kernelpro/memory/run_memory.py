"""What a run has learnt: attempts, errors with their fixes, facts; and a digest of them for a prompt.

Events go in one by one and are never changed; everything else is computed from them, so that a run that is resumed, and
counts its steps again, knows as much as before.

An error is fixed by the step that left it for good: of a path of attempts that leads from a failing node to a working
one, the last step from a node that shows the error's signature to one that does not.

The digest ranks: sections in their order, each giving so many of its best lines in a turn, turn after turn, until
the budget is spent. Lines that do not fit are left out, shorter ones after them may still fit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kernelpro.memory.wording import error_signature, gist, method_key, telling_line

_CHARACTERS_A_TOKEN = 3.5
"""Technical English has about four; the budget is kept rather than used up."""
_LONGEST_LINE = 400
"""Characters: one long-winded message must not push out ten short ones."""
_WORKED = 1.02
"""Times as fast: what is nearer to one is within the noise of two timings."""
_KEPT_PROMISE = 0.5
"""A hypothesis is confirmed when at least half of the promised logarithm followed."""


@dataclass(frozen=True)
class Attempt:
    """A node that was tried: exactly one of `gain` and `failure` says how it ended."""

    node: int
    """Its number in the tree; what is said last of a node counts."""
    parent: int
    method: str
    """The plan in a sentence."""
    hypothesis: str = ""
    gain: float | None = None
    """Times as fast as its parent; as the fastest baseline where it is `fresh`."""
    failure: str = ""
    """Status and reason, where it does not work."""
    promised: float = 0.0
    """Times as fast as its parent, by its author's hypothesis; 0: nothing was promised."""
    fresh: bool = False
    """There is no parent with a time: a new design, or the mending of what did not work."""
    ms: float | None = None

    def __post_init__(self) -> None:
        if (self.gain is None) == (not self.failure):
            raise ValueError("an attempt has either a gain or a failure")

    @property
    def worth(self) -> float:
        return self.gain or 0.0

    @property
    def confirmed(self) -> bool | None:
        """Whether what was measured bears the hypothesis out; None where that is not known."""
        if self.promised <= 1 or self.gain is None or self.fresh:
            return None
        return math.log(self.gain) >= _KEPT_PROMISE * math.log(self.promised)


@dataclass(frozen=True)
class Error:
    """A message that a node's build or run ended with."""

    node: int
    message: str


@dataclass(frozen=True)
class Fact:
    """What an author found out: a signature, a path, a measurement."""

    text: str
    node: int | None = None


Event = Attempt | Error | Fact


@dataclass(frozen=True)
class Outcomes:
    """Attempts by how they ended."""

    gains: tuple[Attempt, ...]
    """Clearly faster than their parents, or than every baseline where they are fresh; the best first."""
    failures: tuple[Attempt, ...]
    """What does not work, then what is no faster, the slowest first."""


@dataclass(frozen=True)
class Recurring:
    """All errors of one signature."""

    signature: str
    example: str
    """The last message in full."""
    count: int
    fix: str
    """The method that led out of it last; empty where none has yet."""


class RunMemory:
    def __init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        self._errors: list[tuple[str, Error]] = []
        """With their signatures."""
        self._facts: dict[str, Fact] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Attempt):
            self._attempts[event.node] = event
        elif isinstance(event, Error):
            self._errors.append((error_signature(event.message), event))
        else:
            self._facts.setdefault(" ".join(event.text.split()).lower(), event)

    # --- questions -----------------------------------------------------------------------------------

    def tried_under(self, node: int) -> Outcomes:
        """What was tried from this node."""
        return _outcomes(attempt for attempt in self._attempts.values() if attempt.parent == node)

    def tried_elsewhere(self, node: int) -> Outcomes:
        return _outcomes(attempt for attempt in self._attempts.values() if attempt.parent != node)

    def errors(self) -> tuple[Recurring, ...]:
        """By how often they were seen, then the latest first."""
        fixes = self._fixes()
        found: dict[str, list[Error]] = {}
        latest: dict[str, int] = {}
        for index, (signature, error) in enumerate(self._errors):
            found.setdefault(signature, []).append(error)
            latest[signature] = index
        order = sorted(found, key=lambda signature: (-len(found[signature]), -latest[signature]))
        return tuple(Recurring(s, found[s][-1].message, len(found[s]), fixes.get(s, "")) for s in order)

    def facts(self) -> tuple[Fact, ...]:
        """The latest first; what was told twice is there once."""
        return tuple(reversed(self._facts.values()))

    def _fixes(self) -> dict[str, str]:
        """By signature; the latest fix counts."""
        shown: dict[int, set[str]] = {}
        for signature, error in self._errors:
            shown.setdefault(error.node, set()).add(signature)
        fixes = {}
        for attempt in self._attempts.values():
            if attempt.failure:
                continue
            step, parent = attempt, self._attempts.get(attempt.parent)
            still: set[str] = set()
            visited = {attempt.node}
            while parent and parent.failure and parent.node not in visited:
                visited.add(parent.node)
                left = shown.get(parent.node, set()) - still
                fixes.update(dict.fromkeys(sorted(left - shown.get(step.node, set())), step.method))
                still |= shown.get(parent.node, set())
                step, parent = parent, self._attempts.get(parent.parent)
        return fixes

    # --- in words ------------------------------------------------------------------------------------

    def digest(self, node: int, budget_tokens: int, told: Collection[int] = ()) -> str:
        """The most valuable of all this for whoever works on `node`, in at most so many tokens; empty where nothing is known.

        `told`: nodes that the reader is told of elsewhere, as of `node` itself.
        """
        under, elsewhere = (
            Outcomes(
                *(
                    tuple(a for a in ended if a.node != node and a.node not in told)
                    for ended in (some.gains, some.failures)
                )
            )
            for some in (self.tried_under(node), self.tried_elsewhere(node))
        )
        shares = {
            "Tried from this kernel" if node else "Designs tried": (
                4,
                _lines([*under.gains, *under.failures]),
            ),
            "Errors seen, and what fixed them": (2, [_error_line(error) for error in self.errors()]),
            "What worked in other steps": (2, _lines(elsewhere.gains)),
            "Facts": (2, [_clipped(fact.text) for fact in self.facts()]),
            "What did not work in other steps": (1, _lines(elsewhere.failures)),
        }
        sections = {title: lines for title, (_, lines) in shares.items()}
        ranked = sorted(
            (index // share, list(sections).index(title), index, title)
            for title, (share, lines) in shares.items()
            for index in range(len(lines))
        )
        left = int(budget_tokens * _CHARACTERS_A_TOKEN)
        chosen: dict[str, list[int]] = {title: [] for title in sections}
        for _, _, index, title in ranked:
            cost = len(f"- {sections[title][index]}\n") + (0 if chosen[title] else len(f"{title}:\n\n"))
            if cost <= left:
                left -= cost
                chosen[title].append(index)
        blocks = [
            f"{title}:\n" + "\n".join(f"- {sections[title][index]}" for index in sorted(indices))
            for title, indices in chosen.items()
            if indices
        ]
        return "\n\n".join(blocks)


def _outcomes(attempts: Iterable[Attempt]) -> Outcomes:
    known = list(attempts)
    gains = sorted((a for a in known if a.worth >= _WORKED), key=lambda a: -a.worth)
    return Outcomes(
        tuple(gains), tuple(sorted((a for a in known if a.worth < _WORKED), key=lambda a: a.worth))
    )


def _lines(attempts: Iterable[Attempt]) -> list[str]:
    """One a method, in the order given: the first of a method speaks for it, the others are counted."""
    groups: dict[tuple[str, bool], list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault((method_key(attempt.method), bool(attempt.failure)), []).append(attempt)
    return [_attempt_line(group) for group in groups.values()]


def _attempt_line(group: list[Attempt]) -> str:
    first = group[0]
    outcome = f"failed: {first.failure}" if first.failure else _gained(first)
    tail = ""
    if len(group) > 1:
        others = (
            ""
            if first.failure
            else f", {min(a.worth for a in group):.2f}x to {max(a.worth for a in group):.2f}x"
        )
        tail = f" (tried {len(group)} times{others})"
    return _clipped(f"{gist(first.method)} -> {outcome}{tail}")


def _gained(attempt: Attempt) -> str:
    """What came, over what, and what was expected."""
    text = f"{attempt.ms:.4f} ms, " if attempt.ms else ""
    text += f"{attempt.gain:.2f}x as fast as " + (
        "the best baseline" if attempt.fresh else f"step {attempt.parent}"
    )
    if attempt.promised and not attempt.fresh:
        text += f"; {expectation(attempt)}"
    return text


def expectation(attempt: Attempt) -> str:
    """What was promised, why, and whether it came true."""
    mark = {True: ", confirmed", False: ", refuted", None: ""}[attempt.confirmed]
    return f"expected {attempt.promised:.2f}x{mark}" + (
        f" ({gist(attempt.hypothesis)})" if attempt.hypothesis else ""
    )


def _error_line(error: Recurring) -> str:
    times = f" ({error.count} times)" if error.count > 1 else ""
    fix = f"; fixed by: {gist(error.fix)}" if error.fix else "; no fix found yet"
    room = _LONGEST_LINE - len(times) - min(len(fix), _LONGEST_LINE // 2)
    return _clipped(_clipped(telling_line(error.example), room) + times + fix)


def _clipped(text: str, longest: int = _LONGEST_LINE) -> str:
    """On one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
