"""Formats results as text for an LLM or a person: `path:line: text`, omissions, how to narrow the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernelpro.code_search.line_search import GrepResult
from kernelpro.code_search.ranking import MAX_HITS_PER_FILE, SearchResult
from kernelpro.code_search.symbols import SymbolLocation
from kernelpro.code_search.trees import SourceTree

MAX_LINE_CHARACTERS = 200
MAX_READ_LINES = 400
"""Maximum number of lines of one `read`: about 6,000 tokens."""
MAX_OUTLINE_LINES = 300


def clip(text: str) -> str:
    """Truncate a line to MAX_LINE_CHARACTERS."""
    text = text.rstrip()
    return text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 4] + " ..."


def format_hits(query: str, found: SearchResult) -> str:
    """Format the hits of a search."""
    if not found.hits:
        return f"nothing matches {query!r}: try other words or fewer; `grep` finds exact text"
    lines = []
    for hit in found.hits:
        lines.append(clip(f"{hit.path}:{hit.start}-{hit.end}: {hit.kind} {hit.symbol}".rstrip()))
        lines += [f"    {number}: {clip(text.strip())}" for number, text in hit.lines]
    if found.omitted:
        lines.append(f"({found.omitted} more in files with {MAX_HITS_PER_FILE} hits above)")
    if found.more:
        lines.append(f"(these are the best {len(found.hits)}; more match: add words, or raise limit)")
    return "\n".join(lines)


def format_matches(pattern: str, found: GrepResult, limit: int) -> str:
    """Format the lines that a pattern matches."""
    end = []
    if found.timed_out:
        end.append(
            "(stopped: the pattern takes too long; simplify it, avoid nested repeats such as (a+)+, or narrow"
            " with glob)"
        )
    if not found.lines:
        return "\n".join(end or [f"no line matches {pattern!r} in {found.files} files"])
    return "\n".join(
        [*_format_lines(found.lines, limit, found.complete, "narrow with glob or a longer pattern"), *end]
    )


def format_uses(symbol: str, found: tuple[list[tuple[str, int, str]], bool], limit: int) -> str:
    """Format the uses of a symbol."""
    lines, complete = found
    if not lines:
        return f"{symbol}: defined in the tree, but not used elsewhere"
    return "\n".join(_format_lines(lines, limit, complete, "raise limit, or grep with a glob"))


def limit_per_file(lines: Sequence[tuple[str, int, str]], limit: int) -> list[tuple[str, int, str]]:
    """Return at most `limit` lines. If there are more, each file gets at most a fifth of them, so that no
    file crowds out the others."""
    files = len({path for path, _, _ in lines})
    share = len(lines) if len(lines) <= limit or files == 1 else max(2, limit // 5)
    shown: Counter[str] = Counter()
    chosen: list[tuple[str, int, str]] = []
    for line in lines:
        if len(chosen) < limit and shown[line[0]] < share:
            shown[line[0]] += 1
            chosen.append(line)
    return chosen


def _format_lines(lines: Sequence[tuple[str, int, str]], limit: int, complete: bool, how: str) -> list[str]:
    chosen = limit_per_file(lines, limit)
    output = [f"{path}:{number}: {clip(text.strip())}" for path, number, text in chosen]
    if len(output) < len(lines) or not complete:
        total = Counter(path for path, _, _ in lines)
        rest = total - Counter(path for path, _, _ in chosen)
        files = ", ".join(
            f"{path} ({count})"
            for path, count in sorted(rest.items(), key=lambda item: (-item[1], item[0]))[:5]
        )
        at_least = "" if complete else "at least "
        output.append(
            f"(shown {len(output)} of {at_least}{len(lines)} lines in {len(total)} files; {how}"
            + (f"; most of the rest in {files})" if files else ")")
        )
    return output


def format_definitions(tree: SourceTree, found: Sequence[SymbolLocation], limit: int) -> str:
    """Format definitions with their signatures."""
    output = []
    for location in found[:limit]:
        output.append(
            clip(f"{location.path}:{location.line}-{location.end}: {location.kind} {location.qualified}")
        )
        lines = tree.lines(location.path)[location.line - 1 : min(location.end, location.line + 5)]
        head = next(
            (row for row, text in enumerate(lines, 1) if text.rstrip().endswith(("{", ";", ":"))), len(lines)
        )
        output += [f"    {number}: {clip(text)}" for number, text in enumerate(lines[:head], location.line)]
    if len(found) > limit:
        output.append(f"(shown {limit} of {len(found)}; qualify the name (Class::name), or raise limit)")
    return "\n".join(output)


def format_outline(path: str, found: Sequence[SymbolLocation], length: int) -> str:
    """Format the definitions of a file. If there are more than MAX_OUTLINE_LINES, the outermost are shown."""
    output = [f"{path}: {length} lines, {len(found)} definitions"]
    chosen = list(found)
    for kind in ("alias", "declaration", "macro"):
        if len(chosen) > MAX_OUTLINE_LINES:
            chosen = [location for location in chosen if location.kind != kind]
    depth = max((location.depth for location in chosen), default=0)
    while len(chosen) > MAX_OUTLINE_LINES and depth > 0:
        depth -= 1
        chosen = [location for location in chosen if location.depth <= depth]
    for location in chosen[:MAX_OUTLINE_LINES]:
        output.append(
            clip(
                f"{'  ' * location.depth}{location.line}-{location.end}: {location.kind}"
                f" {_unqualified(location)}"
            )
        )
    if len(found) > min(len(chosen), MAX_OUTLINE_LINES):
        shown = min(len(chosen), MAX_OUTLINE_LINES)
        output.append(
            f"(shown {shown} of {len(found)}, outermost first; `grep` with the path as glob finds the others)"
        )
    return "\n".join(output)


def _unqualified(location: SymbolLocation) -> str:
    """Return the unqualified name of a nested definition, because its outer definition is shown above it."""
    if not location.depth or location.kind == "section":
        return location.qualified
    outer, sign, _ = location.qualified.split("<")[0].rpartition(
        "." if location.path.endswith(".py") else "::"
    )
    return location.qualified[len(outer) + len(sign) :]


def format_reading(path: str, lines: Sequence[str], start: int, end: int) -> str:
    """Format the lines `start` to `end` with their numbers, at most MAX_READ_LINES."""
    last = min(end, len(lines), start + MAX_READ_LINES - 1)
    output = [f"{path}: lines {start}-{last} of {len(lines)}"]
    output += [f"{number}: {clip(text)}" for number, text in enumerate(lines[start - 1 : last], start)]
    if last < min(end, len(lines)):
        output.append(f"(at most {MAX_READ_LINES} lines at once; continue with start={last + 1})")
    return "\n".join(output)
