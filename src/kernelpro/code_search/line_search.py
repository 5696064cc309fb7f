"""Finds every line that matches a pattern, ordered by path. A ranked search does not find all lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kernelpro.code_search.trees import Listing, SourceTree
from kernelpro.records import BadInput

TIMEOUT_SECONDS = 10.0
"""A pass over CUTLASS takes half a second. A pattern that takes 20 times as long will hardly finish."""
MAX_MATCHES = 2000
"""The search stops after this many lines: for such a broad pattern, the exact count does not matter."""
MAX_PATTERN_CHARACTERS = 500


@dataclass(frozen=True)
class GrepResult:
    """Matching lines as (path, line, text).

    `files`: the number of searched files. `complete`: False if the search stopped early or timed out.
    """

    lines: list[tuple[str, int, str]]
    files: int
    complete: bool
    timed_out: bool = False


def grep(
    tree: SourceTree,
    listing: Listing,
    pattern: str,
    regex: bool,
    glob: str,
    ignore_case: bool,
    seconds: float = TIMEOUT_SECONDS,
) -> GrepResult:
    """Find the lines that match `pattern` (exact text or a regular expression) in files that match `glob`."""
    if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS:
        raise BadInput(f"pattern: use 1 to {MAX_PATTERN_CHARACTERS} characters")
    request = {
        "root": str(tree.root),
        "files": list(listing.files),
        "glob": glob,
        "pattern": pattern if regex else re.escape(pattern),
        "ignore_case": ignore_case,
        "max_lines": MAX_MATCHES + 1,
    }
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("grep_process.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    timed_out = False
    try:
        answer, _ = child.communicate(json.dumps(request), timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        child.kill()
        answer, _ = child.communicate()
    finally:
        child.kill()
    rows = [json.loads(row) for row in answer.split("\n") if row.endswith("]")]
    if rows and rows[-1][:2] == ["", -1]:
        raise BadInput(
            f"{pattern!r}: invalid regular expression ({rows[-1][2]}); turn regex off for exact text"
        )
    finished = bool(rows) and rows[-1][0] == ""
    if not finished and not timed_out:
        raise BadInput(f"{pattern!r}: the pattern needs too much memory; simplify it")
    lines = [(str(path), int(line), str(text)) for path, line, text in rows if path]
    complete = finished and len(lines) <= MAX_MATCHES
    return GrepResult(lines[:MAX_MATCHES], int(rows[-1][1]) if finished else 0, complete, timed_out)
