"""Anchors: the exact spans of a source that a plan allows to change, and the machine's check that nothing else did.

A planner names spans by quoting them: the first and the last line, as they stand (one line where the span is one). The
quotes must be found, once, in order and without overlap. A coder then sends new text for each anchor, and the rest stays
as it is by construction; or it sends a whole file, which is accepted only if everything outside the anchors is equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelpro.records import BadInput


@dataclass(frozen=True)
class Quote:
    """How a planner names a span."""

    name: str
    first: str
    """The span's first line, without regard to space around it."""
    last: str = ""
    """Its last line; empty: the same as the first."""


@dataclass(frozen=True)
class Span:
    """Lines of a source, from `start` up to but without `end`, counted from 0."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Anchored:
    lines: tuple[str, ...]
    """The source's lines with their ends."""
    spans: tuple[Span, ...]
    """In order, without overlap."""

    def text(self, span: Span) -> str:
        return "".join(self.lines[span.start : span.end])

    @property
    def characters(self) -> int:
        """Of all spans together."""
        return sum(len(self.text(span)) for span in self.spans)

    def shown(self, room: float = math.inf) -> str:
        """The source with a line before and after each span that names it, in about `room` characters.

        The spans are always there. What does not fit is left out from where it is farthest from them and from the file's top.
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
        """Lines outside the spans that fit beside them: the nearest first."""
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
        """Lines `start` to `end`; a note where some of them are not kept."""
        for is_kept, group in itertools.groupby(range(start, end), kept.__contains__):
            lines = [self.lines[line] for line in group]
            yield from lines if is_kept else [f"[... {len(lines)} lines left out]\n"]

    def fill(self, texts: Mapping[str, str]) -> str:
        """The source with new text for every anchor; raises BadInput where one is missing or unknown."""
        names = [span.name for span in self.spans]
        if unknown := [name for name in texts if name not in names]:
            raise BadInput(f"there is no anchor {', '.join(unknown)}; there are {', '.join(names)}")
        if missing := [name for name in names if name not in texts]:
            raise BadInput(f"no text for anchor {', '.join(missing)}: answer every one of {', '.join(names)}")
        parts, at = [], 0
        for span in self.spans:
            parts += ["".join(self.lines[at : span.start]), _ended(texts[span.name])]
            at = span.end
        return "".join([*parts, *self.lines[at:]])

    def check(self, whole: str) -> dict[str, str]:
        """The anchors' texts in a whole file that was sent instead; raises BadInput with the first place outside that differs.

        Of two anchors with nothing between them the second gets both texts.
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
                    f"after anchor {span.name} the line {wanted!r} (line {span.end + 1} of the original) was changed"
                )
            texts[span.name] = "".join(lines[at:end])
            at, old = end, span.end
        self._same(lines, at, old, len(self.lines), whole=True)
        return texts

    def _same(self, lines: Sequence[str], at: int, start: int, end: int, whole: bool = False) -> int:
        """Lines `start` to `end` of the original must stand at `at`; returns where they end."""
        for offset in range(end - start):
            before = self.lines[start + offset].rstrip("\r\n")
            after = lines[at + offset].rstrip("\r\n") if at + offset < len(lines) else None
            if before != after:
                told = "is missing" if after is None else f"became {after!r}"
                raise BadInput(
                    f"line {start + offset + 1} lies outside the anchors and {told}; it must stay {before!r}"
                )
        at += end - start
        if whole and any(line.strip() for line in lines[at:]):
            raise BadInput(
                f"line {at + 1} of the answer lies outside the anchors and was added: {lines[at].strip()!r}"
            )
        return at


def place(source: str, quotes: Sequence[Quote]) -> Anchored:
    """Find every quote; raises BadInput that says which one is not there, or is there more than once."""
    lines = source.splitlines(keepends=True)
    bare = [line.strip() for line in lines]
    spans = []
    for quote in quotes:
        starts = [i for i, line in enumerate(bare) if line == quote.first.strip()]
        if not starts:
            raise BadInput(
                f"anchor {quote.name}: no line reads {quote.first.strip()!r}; quote a line exactly as it stands"
            )
        last = quote.last.strip() or quote.first.strip()
        ends = [[j for j in range(start, len(bare)) if bare[j] == last][:1] for start in starts]
        found = [(start, end[0] + 1) for start, end in zip(starts, ends, strict=True) if end]
        if not found:
            raise BadInput(f"anchor {quote.name}: no line after its first reads {last!r}")
        if len(found) > 1:
            where = ", ".join(str(start + 1) for start, _ in found)
            raise BadInput(
                f"anchor {quote.name}: {quote.first.strip()!r} stands in lines {where}; quote a line that is there once"
            )
        spans.append(Span(quote.name, *found[0]))
    spans.sort(key=lambda span: span.start)
    for one, other in itertools.pairwise(spans):
        if other.start < one.end:
            raise BadInput(f"anchors {one.name} and {other.name} overlap at line {other.start + 1}")
    if len({span.name for span in spans}) < len(spans):
        names = [span.name for span in spans]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"two anchors have the same name, {twice}")
    return Anchored(tuple(lines), tuple(spans))


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _find(lines: Sequence[str], wanted: Sequence[str], at: int, last: bool) -> int | None:
    """Where the lines that follow an anchor stand, at or after `at`; of the last anchor at the end of the file."""
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
