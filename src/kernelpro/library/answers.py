"""Answers as text that an LLM, or a person, reads well: `path:line: text`, what was left out, and how to narrow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernelpro.library.grepping import Matches
from kernelpro.library.ranking import PER_FILE, Found
from kernelpro.library.symbols import Place
from kernelpro.library.trees import Tree

LONGEST_LINE = 200
MOST_LINES = 400
"""Lines of one reading: about 6,000 tokens."""
MOST_OUTLINE = 300


def clip(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 4] + " ..."


def hits(query: str, found: Found) -> str:
    if not found.hits:
        return f"nothing matches {query!r}: try other words, or fewer; `grep` finds exact text"
    lines = []
    for hit in found.hits:
        lines.append(clip(f"{hit.path}:{hit.start}-{hit.end}: {hit.kind} {hit.symbol}".rstrip()))
        lines += [f"    {number}: {clip(text.strip())}" for number, text in hit.lines]
    if found.crowded:
        lines.append(f"({found.crowded} more in files that already show {PER_FILE})")
    if found.more:
        lines.append(f"(the best {len(found.hits)}; more match: add words, or raise limit)")
    return "\n".join(lines)


def matched(pattern: str, found: Matches, limit: int) -> str:
    end = []
    if found.timed_out:
        end.append(
            "(stopped: the pattern takes too long; simplify it, avoid nested repeats such as (a+)+, or narrow with glob)"
        )
    if not found.lines:
        return "\n".join(end or [f"no line matches {pattern!r} in {found.files} files"])
    return "\n".join(
        [*_spread(found.lines, limit, found.complete, "narrow with glob or a longer pattern"), *end]
    )


def uses(symbol: str, found: tuple[list[tuple[str, int, str]], bool], limit: int) -> str:
    lines, complete = found
    if not lines:
        return f"{symbol}: defined, and used nowhere else in the tree"
    return "\n".join(_spread(lines, limit, complete, "raise limit, or grep with a glob"))


def spread(lines: Sequence[tuple[str, int, str]], limit: int) -> list[tuple[str, int, str]]:
    """At most `limit` lines. If there are more, a file shows a fifth of the limit at most: one file does not hide the others."""
    files = len({path for path, _, _ in lines})
    share = len(lines) if len(lines) <= limit or files == 1 else max(2, limit // 5)
    shown: Counter[str] = Counter()
    chosen: list[tuple[str, int, str]] = []
    for line in lines:
        if len(chosen) < limit and shown[line[0]] < share:
            shown[line[0]] += 1
            chosen.append(line)
    return chosen


def _spread(lines: Sequence[tuple[str, int, str]], limit: int, complete: bool, how: str) -> list[str]:
    chosen = spread(lines, limit)
    made = [f"{path}:{number}: {clip(text.strip())}" for path, number, text in chosen]
    if len(made) < len(lines) or not complete:
        total = Counter(path for path, _, _ in lines)
        rest = total - Counter(path for path, _, _ in chosen)
        most = ", ".join(
            f"{path} ({count})"
            for path, count in sorted(rest.items(), key=lambda item: (-item[1], item[0]))[:5]
        )
        least = "" if complete else "at least "
        made.append(
            f"(shown {len(made)} of {least}{len(lines)} lines in {len(total)} files; {how}"
            + (f"; most left in {most})" if most else ")")
        )
    return made


def places(tree: Tree, found: Sequence[Place], limit: int) -> str:
    """Definitions with their heads."""
    made = []
    for spot in found[:limit]:
        made.append(clip(f"{spot.path}:{spot.line}-{spot.end}: {spot.kind} {spot.qualified}"))
        lines = tree.lines(spot.path)[spot.line - 1 : min(spot.end, spot.line + 5)]
        head = next(
            (row for row, text in enumerate(lines, 1) if text.rstrip().endswith(("{", ";", ":"))), len(lines)
        )
        made += [f"    {number}: {clip(text)}" for number, text in enumerate(lines[:head], spot.line)]
    if len(found) > limit:
        made.append(f"(shown {limit} of {len(found)}; qualify the name (Class::name), or raise limit)")
    return "\n".join(made)


def outlined(path: str, found: Sequence[Place], length: int) -> str:
    made = [f"{path}: {length} lines, {len(found)} definitions"]
    chosen = list(found)
    for kind in ("alias", "declaration", "macro"):
        if len(chosen) > MOST_OUTLINE:
            chosen = [spot for spot in chosen if spot.kind != kind]
    depth = max((spot.depth for spot in chosen), default=0)
    while len(chosen) > MOST_OUTLINE and depth > 0:
        depth -= 1
        chosen = [spot for spot in chosen if spot.depth <= depth]
    for spot in chosen[:MOST_OUTLINE]:
        made.append(clip(f"{'  ' * spot.depth}{spot.line}-{spot.end}: {spot.kind} {_short(spot)}"))
    if len(found) > min(len(chosen), MOST_OUTLINE):
        shown = min(len(chosen), MOST_OUTLINE)
        made.append(
            f"(shown {shown} of {len(found)}, outermost first; `grep` with the path as glob finds the others)"
        )
    return "\n".join(made)


def _short(spot: Place) -> str:
    """In an outline an inner definition needs no qualification: it stands below the outer one."""
    if not spot.depth or spot.kind == "section":
        return spot.qualified
    outer, sign, _ = spot.qualified.split("<")[0].rpartition("." if spot.path.endswith(".py") else "::")
    return spot.qualified[len(outer) + len(sign) :]


def reading(path: str, lines: Sequence[str], start: int, end: int) -> str:
    """Lines start..end with their numbers, at most MOST_LINES."""
    last = min(end, len(lines), start + MOST_LINES - 1)
    made = [f"{path}: lines {start}-{last} of {len(lines)}"]
    made += [f"{number}: {clip(text)}" for number, text in enumerate(lines[start - 1 : last], start)]
    if last < min(end, len(lines)):
        made.append(f"(at most {MOST_LINES} lines at once; go on with start={last + 1})")
    return "\n".join(made)
