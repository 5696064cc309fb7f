"""Anchors: the exact spans of a source that a plan allows to change, and the check that nothing else changed.

A planner quotes the first and the last line of each span. Every quote must match exactly once, and spans must
not overlap. A coder then sends new text for each anchor, so that the rest stays unchanged by construction. A
complete file is accepted instead if it is equal to the original outside the anchors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelpro.records import BadInput


@dataclass(frozen=True)
class Quote:
    """A span as a planner names it."""

    name: str
    first: str
    """The span's first line; surrounding white space is ignored."""
    last: str = ""
    """The span's last line; empty if the span is one line."""


@dataclass(frozen=True)
class Span:
    """Lines `start` to `end` (exclusive) of a source, counted from 0."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class AnchoredSource:
    """A source with its spans."""

    lines: tuple[str, ...]
    """The lines of the source, with line ends."""
    spans: tuple[Span, ...]
    """Sorted, without overlap."""

    def text(self, span: Span) -> str:
        """Return the text of a span."""
        return "".join(self.lines[span.start : span.end])

    @property
    def characters(self) -> int:
        """Total length of all spans."""
        return sum(len(self.text(span)) for span in self.spans)

    def marked_text(self, room: float = math.inf) -> str:
        """Return the source with a marker line before and after each span, in about `room` characters.

        Spans are always complete. The lines farthest from them and from the top of the file are left out
        first.
        """
        kept = self._kept(room)
        parts, at = [], 0
        for span in self.spans:
            parts += [*self._outside(at, span.start, kept), f"<<<<<<< {span.name}\n"]
            body = self.lines[span.start : span.end]
            parts += [*body, "" if not body or body[-1].endswith("\n") else "\n", f">>>>>>> {span.name}\n"]
            at = span.end
        return "".join([*parts, *self._outside(at, len(self.lines), kept)])

    def _kept(self, room: float) -> set[int]:
        """Return the lines outside the spans that fit, nearest first."""
        inside = {line for span in self.spans for line in range(span.start, span.end)}
        edges = [0, *(edge for span in self.spans for edge in (span.start - 1, span.end))]
        outside = (line for line in range(len(self.lines)) if line not in inside)
        left, kept = room - self.characters, set[int]()
        for line in sorted(outside, key=lambda line: min(abs(line - edge) for edge in edges)):
            left -= len(self.lines[line])
            if left < 0:
                break
            kept.add(line)
        return kept

    def _outside(self, start: int, end: int, kept: set[int]) -> Iterator[str]:
        """Yield lines `start` to `end`, with a note where lines are left out."""
        for is_kept, group in itertools.groupby(range(start, end), kept.__contains__):
            lines = [self.lines[line] for line in group]
            yield from lines if is_kept else [f"[... {len(lines)} lines left out]\n"]

    def fill(self, texts: Mapping[str, str]) -> str:
        """Return the source with new text for every anchor. Raises BadInput if one is missing or unknown."""
        names = [span.name for span in self.spans]
        if unknown := [name for name in texts if name not in names]:
            raise BadInput(f"unknown anchor {', '.join(unknown)}; the anchors are {', '.join(names)}")
        if missing := [name for name in names if name not in texts]:
            raise BadInput(
                f"no text for anchor {', '.join(missing)}: send text for each of {', '.join(names)}"
            )
        parts, at = [], 0
        for span in self.spans:
            parts += ["".join(self.lines[at : span.start]), _with_newline(texts[span.name])]
            at = span.end
        return "".join([*parts, *self.lines[at:]])

    def check(self, whole: str) -> dict[str, str]:
        """Return the anchors' texts in a complete file. Raises BadInput at the first difference outside them.

        If two anchors are adjacent, their texts cannot be told apart: the second gets both.
        """
        lines = whole.splitlines(keepends=True)
        texts: dict[str, str] = {}
        at = old = 0
        for index, span in enumerate(self.spans):
            at = self._same(lines, at, old, span.start)
            following = self.spans[index + 1].start if index + 1 < len(self.spans) else len(self.lines)
            rest = [line.rstrip("\r\n") for line in self.lines[span.end : following]]
            end = _find(lines, rest, at, last=index + 1 == len(self.spans))
            if end is None:
                wanted = rest[0] if rest else "the end of the file"
                raise BadInput(
                    f"after anchor {span.name}, {wanted!r} (originally line {span.end + 1}) was changed"
                )
            texts[span.name] = "".join(lines[at:end])
            at, old = end, span.end
        self._same(lines, at, old, len(self.lines), whole=True)
        return texts

    def _same(self, lines: Sequence[str], at: int, start: int, end: int, whole: bool = False) -> int:
        """Require lines `start` to `end` of the original at position `at`; return the position after them."""
        for offset in range(end - start):
            before = self.lines[start + offset].rstrip("\r\n")
            after = lines[at + offset].rstrip("\r\n") if at + offset < len(lines) else None
            if before != after:
                change = "is missing" if after is None else f"became {after!r}"
                raise BadInput(
                    f"line {start + offset + 1} is outside the anchors and {change}; it must stay {before!r}"
                )
        at += end - start
        if whole and any(line.strip() for line in lines[at:]):
            raise BadInput(
                f"line {at + 1} of the answer is outside the anchors and was added: {lines[at].strip()!r}"
            )
        return at


def locate_anchors(source: str, quotes: Sequence[Quote]) -> AnchoredSource:
    """Locate every quote. Raises BadInput if one is missing, ambiguous or overlaps another."""
    lines = source.splitlines(keepends=True)
    bare = [line.strip() for line in lines]
    spans = []
    for quote in quotes:
        starts = [i for i, line in enumerate(bare) if line == quote.first.strip()]
        if not starts:
            raise BadInput(
                f"anchor {quote.name}: no line equals {quote.first.strip()!r}; quote a line exactly"
            )
        last = quote.last.strip() or quote.first.strip()
        ends = [[j for j in range(start, len(bare)) if bare[j] == last][:1] for start in starts]
        matches = [(start, end[0] + 1) for start, end in zip(starts, ends, strict=True) if end]
        if not matches:
            raise BadInput(f"anchor {quote.name}: no line after its first line equals {last!r}")
        if len(matches) > 1:
            where = ", ".join(str(start + 1) for start, _ in matches)
            raise BadInput(
                f"anchor {quote.name}: {quote.first.strip()!r} occurs in lines {where}; quote a unique line"
            )
        spans.append(Span(quote.name, *matches[0]))
    spans.sort(key=lambda span: span.start)
    for span, following in itertools.pairwise(spans):
        if following.start < span.end:
            raise BadInput(f"anchors {span.name} and {following.name} overlap at line {following.start + 1}")
    if len({span.name for span in spans}) < len(spans):
        names = [span.name for span in spans]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"two anchors have the same name, {duplicate}")
    return AnchoredSource(tuple(lines), tuple(spans))


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _find(lines: Sequence[str], wanted: Sequence[str], at: int, last: bool) -> int | None:
    """Return the position, at or after `at`, of the lines that follow an anchor: for the last anchor they
    must end the file."""
    bare = [line.rstrip("\r\n") for line in lines]
    if not wanted:
        return len(bare) if last else at
    if last:
        while bare and not bare[-1].strip() and len(bare) > at + len(wanted):
            bare.pop()
        start = len(bare) - len(wanted)
        return start if start >= at and bare[start:] == list(wanted) else None
    for start in range(at, len(bare) - len(wanted) + 1):
        if bare[start : start + len(wanted)] == list(wanted):
            return start
    return None
