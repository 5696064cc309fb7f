"""Run a regular expression over files, in a process of its own that can be killed: a pattern can take for ever.

Started by its path, with the standard library alone. In: one JSON object on stdin (root, files, glob, pattern, ignore_case, most).
Out: JSON lines, [path, line, text] for each matching line, then ["", files looked at, 0] when all was seen; or ["", -1, error].
"""

from __future__ import annotations

import json
import os
import re
import sys
from bisect import bisect_right

MOST_BYTES = 8 << 20
MOST_CHARACTERS = 400
_MEMORY = 2 << 30
"""Bytes of address space: room for one file and its matches many times over."""


def glob(pattern: str) -> re.Pattern[str]:
    """`*` within a folder, `**` across folders; without a slash the pattern is about file names in any folder."""
    rest = pattern if "/" in pattern else "**/" + pattern
    made = ""
    while rest:
        for sign, meaning in (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if rest.startswith(sign):
                made, rest = made + meaning, rest[len(sign) :]
                break
        else:
            made, rest = made + re.escape(rest[0]), rest[1:]
    return re.compile(made)


def matches(text: str, pattern: re.Pattern[str], most: int) -> list[tuple[int, str]]:
    """Lines on which a match begins, each once, at most `most`."""
    newlines: list[int] = []
    found: list[tuple[int, str]] = []
    last = 0
    for match in pattern.finditer(text):
        if not newlines:
            newlines = [-1] + [at.start() for at in re.finditer("\n", text)] + [len(text)]
        line = bisect_right(newlines, match.start() - 1)
        if line == last or line >= len(newlines):
            continue
        last = line
        found.append((line, text[newlines[line - 1] + 1 : newlines[line]][:MOST_CHARACTERS]))
        if len(found) >= most:
            break
    return found


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # a bound beyond the timeout; not everywhere
    asked = json.load(sys.stdin)
    try:
        pattern = re.compile(asked["pattern"], re.MULTILINE | (re.IGNORECASE if asked["ignore_case"] else 0))
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        print(json.dumps(["", -1, str(error)]))
        return
    wanted = glob(asked["glob"]) if asked["glob"] else None
    left, seen = asked["most"], 0
    for path in asked["files"]:
        if left <= 0:
            break
        if wanted and not wanted.fullmatch(path):
            continue
        seen += 1
        try:
            with open(os.path.join(asked["root"], path), "rb") as file:
                data = file.read(MOST_BYTES)
        except OSError:
            continue
        if b"\0" in data[:8192]:
            continue
        found = matches(data.decode("utf-8-sig", "replace").replace("\r\n", "\n"), pattern, left)
        left -= len(found)
        if found:
            print("\n".join(json.dumps([path, line, text]) for line, text in found), flush=True)
    print(json.dumps(["", seen, 0]))


if __name__ == "__main__":
    main()
