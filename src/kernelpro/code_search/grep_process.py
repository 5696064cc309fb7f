"""Runs a regular expression over files in a separate process, because a pattern can run forever.

The process is started by the path of this file, and uses only the standard library. Input: one JSON object on
stdin (root, files, glob, pattern, ignore_case, max_lines). Output: JSON lines: [path, line, text] for each
match, then ["", number of files, 0] when all files were searched. For an invalid pattern: ["", -1, error].
"""

from __future__ import annotations

import json
import os
import re
import sys
from bisect import bisect_right

MAX_FILE_BYTES = 8 << 20
MAX_LINE_CHARACTERS = 400
_MEMORY = 2 << 30
"""Limit of the address space in bytes: many times the size of a file and its matches."""


def glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob. `*` matches within a folder, `**` across folders. Without a slash, it matches file
    names in any folder."""
    rest = pattern if "/" in pattern else "**/" + pattern
    pattern_text = ""
    while rest:
        for sign, meaning in (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if rest.startswith(sign):
                pattern_text, rest = pattern_text + meaning, rest[len(sign) :]
                break
        else:
            pattern_text, rest = pattern_text + re.escape(rest[0]), rest[1:]
    return re.compile(pattern_text)


def matching_lines(text: str, pattern: re.Pattern[str], max_lines: int) -> list[tuple[int, str]]:
    """Return the lines on which a match starts, at most `max_lines`, each only once."""
    newlines: list[int] = []
    lines: list[tuple[int, str]] = []
    last = 0
    for match in pattern.finditer(text):
        if not newlines:
            newlines = [-1] + [at.start() for at in re.finditer("\n", text)] + [len(text)]
        line = bisect_right(newlines, match.start() - 1)
        if line == last or line >= len(newlines):
            continue
        last = line
        lines.append((line, text[newlines[line - 1] + 1 : newlines[line]][:MAX_LINE_CHARACTERS]))
        if len(lines) >= max_lines:
            break
    return lines


def main() -> None:
    """Read the request, print the matches."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # not supported on all systems; the timeout remains
    request = json.load(sys.stdin)
    try:
        pattern = re.compile(
            request["pattern"], re.MULTILINE | (re.IGNORECASE if request["ignore_case"] else 0)
        )
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        print(json.dumps(["", -1, str(error)]))
        return
    file_pattern = glob(request["glob"]) if request["glob"] else None
    remaining, seen = request["max_lines"], 0
    for path in request["files"]:
        if remaining <= 0:
            break
        if file_pattern and not file_pattern.fullmatch(path):
            continue
        seen += 1
        try:
            with open(os.path.join(request["root"], path), "rb") as file:
                data = file.read(MAX_FILE_BYTES)
        except OSError:
            continue
        if b"\0" in data[:8192]:
            continue
        lines = matching_lines(data.decode("utf-8-sig", "replace").replace("\r\n", "\n"), pattern, remaining)
        remaining -= len(lines)
        if lines:
            print("\n".join(json.dumps([path, line, text]) for line, text in lines), flush=True)
    print(json.dumps(["", seen, 0]))


if __name__ == "__main__":
    main()
