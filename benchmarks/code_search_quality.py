"""Measure code search: the time to build an index and to answer a query, by size of the source tree.

    python benchmarks/code_search_quality.py [--rounds 5]

1. Trees of growing size are made of CUTLASS: include/cute, include, all of it, and two and four copies of
   it.
2. Each is indexed into an empty cache: wall-clock and CPU seconds.
3. Each of twenty queries is asked `--rounds` times. Every query lists the tree, opens the index and ranks
   anew.

Prints a Markdown table: median and worst time of a search, medians of the other kinds of query. Needs
CUTLASS (`kernelpro code-search` says where it looks for it).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "code_search")]

from test_ranking import QUESTIONS  # noqa: E402

from kernelpro.code_search import NotFound, SourceTree, get_tree, index, queries  # noqa: E402

COLUMNS = (
    "tree",
    "files",
    "MB",
    "chunks",
    "index, s (CPU)",
    "index, MB",
    "listing, ms",
    "search, ms (worst)",
    "definition, ms",
    "uses, ms",
    "grep, ms",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="times that each query is asked")
    rounds = parser.parse_args().rounds
    try:
        source = get_tree("cutlass").root
    except NotFound as error:
        sys.exit(str(error))
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        measure_tree(SourceTree("include/cute", source / "include/cute"), rounds)
        measure_tree(SourceTree("include", source / "include"), rounds)
        measure_tree(SourceTree("all of CUTLASS", source), rounds)
        for copies in (2, 4):
            root = Path(temporary) / f"times{copies}"
            for number in range(copies):
                shutil.copytree(source, root / f"copy{number}")
            measure_tree(SourceTree(f"{copies} times", root), rounds)
            shutil.rmtree(root)


def measure_tree(tree: SourceTree, rounds: int) -> None:
    """Index a tree, query it, print its row, and delete the index."""
    listing = tree.listing()
    wall, cpu = time.perf_counter(), time.process_time()
    chunks = index.query(
        tree, listing, lambda opened: opened.db.execute("SELECT count(*) FROM chunk").fetchone()[0]
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = sum(path.stat().st_size for path in index.folder().glob("*.db"))
    listing_seconds = [seconds(tree.listing) for _ in range(rounds)]
    search_seconds = [
        seconds(lambda query=query: queries.search(tree, query, 10))
        for query, _ in QUESTIONS
        for _ in range(rounds)
    ]
    definition_seconds = [
        seconds(lambda: queries.definition(tree, "make_tiled_copy", 10)) for _ in range(rounds)
    ]
    uses_seconds = [seconds(lambda: queries.uses(tree, "make_tiled_copy", 20)) for _ in range(rounds)]
    grep_seconds = [
        seconds(lambda: queries.grep(tree, r"struct SM90_TMA\w+", True, "", False, 20)) for _ in range(rounds)
    ]
    measured = (listing_seconds, search_seconds, definition_seconds, uses_seconds, grep_seconds)
    medians = [f"{1000 * statistics.median(times):.0f}" for times in measured]
    medians[1] += f" ({1000 * max(search_seconds):.0f})"
    megabytes = sum(bytes_ for bytes_, _ in listing.files.values()) / 1e6
    cells = [
        tree.name,
        len(listing.files),
        f"{megabytes:.1f}",
        chunks,
        f"{wall:.1f} ({cpu:.1f})",
        f"{size / 1e6:.0f}",
        *medians,
    ]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    shutil.rmtree(index.folder())


def seconds(function: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
