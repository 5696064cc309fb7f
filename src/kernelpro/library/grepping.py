"""Every line that matches, in the order of paths: what ranked search cannot promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kernelpro.library.trees import Listing, Tree
from kernelpro.records import BadInput

SECONDS = 10.0
"""A pass over CUTLASS takes half a second; a pattern that needs twenty times as long will not end."""
MOST_MATCHES = 2000
"""Lines that are counted; beyond, the pattern is too wide for the count to matter."""
LONGEST_PATTERN = 500


@dataclass(frozen=True)
class Matches:
    """`lines`: path, line, text. `files`: how many were looked at. `complete` is False if counting stopped, or time ran out."""

    lines: list[tuple[str, int, str]]
    files: int
    complete: bool
    timed_out: bool = False


def grep(
    tree: Tree,
    listing: Listing,
    pattern: str,
    regex: bool,
    glob: str,
    ignore_case: bool,
    seconds: float = SECONDS,
) -> Matches:
    """Lines that hold `pattern` (exact text, or a regular expression) in files that match `glob` (empty: all)."""
    if not pattern or len(pattern) > LONGEST_PATTERN:
        raise BadInput(f"give a pattern of 1 to {LONGEST_PATTERN} characters")
    asked = {
        "root": str(tree.root),
        "files": list(listing.files),
        "glob": glob,
        "pattern": pattern if regex else re.escape(pattern),
        "ignore_case": ignore_case,
        "most": MOST_MATCHES + 1,
    }
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("grep_child.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    timed_out = False
    try:
        answer, _ = child.communicate(json.dumps(asked), timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        child.kill()
        answer, _ = child.communicate()
    finally:
        child.kill()
    rows = [json.loads(row) for row in answer.split("\n") if row.endswith("]")]
    if rows and rows[-1][:2] == ["", -1]:
        raise BadInput(
            f"{pattern!r}: not a regular expression ({rows[-1][2]}); for exact text leave regex off"
        )
    ended = bool(rows) and rows[-1][0] == ""
    if not ended and not timed_out:
        raise BadInput(f"{pattern!r}: the pattern needs too much memory; give a simpler one")
    lines = [(str(path), int(line), str(text)) for path, line, text in rows if path]
    complete = ended and len(lines) <= MOST_MATCHES
    return Matches(lines[:MOST_MATCHES], int(rows[-1][1]) if ended else 0, complete, timed_out)
