"""Code search: how long an index takes to build, how long a question takes, and how both grow with the tree.

    python benchmarks/code_search.py [--rounds 5]        # prints a Markdown table

1. Trees of growing size are made of CUTLASS itself: include/cute, include, all of it, and copies of all of it, two and four.
2. Each is indexed into an empty cache: seconds on the wall and of the processor.
3. Twenty questions, each `--rounds` times, each a fresh call: listing of the tree, opening of the index, ranking, text. Median and
   worst, and medians of the other questions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from library.test_ranking import QUESTIONS  # noqa: E402

from kernelpro.library import Tree, asking, index, named  # noqa: E402

COLUMNS = (
    "tree",
    "files",
    "MB",
    "chunks",
    "index, s (CPU)",
    "index, MB",
    "listing, ms",
    "search, ms (worst)",
)
COLUMNS += ("definition, ms", "uses, ms", "grep, ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    source = named("cutlass").root
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        row(Tree("include/cute", source / "include/cute"), rounds)
        row(Tree("include", source / "include"), rounds)
        row(Tree("all of CUTLASS", source), rounds)
        for copies in (2, 4):
            root = Path(temporary) / f"times{copies}"
            for number in range(copies):
                shutil.copytree(source, root / f"copy{number}")
            row(Tree(f"{copies} times", root), rounds)
            shutil.rmtree(root)


def row(tree: Tree, rounds: int) -> None:
    listing = tree.listing()
    wall, processor = time.perf_counter(), time.process_time()
    chunks = index.ask(
        tree, listing, lambda opened: opened.db.execute("SELECT count(*) FROM chunk").fetchone()[0]
    )
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    size = sum(path.stat().st_size for path in index.folder().glob("*.db"))
    listed = [clock(tree.listing) for _ in range(rounds)]
    searched = [
        clock(lambda query=query: asking.search(tree, query, 10))
        for query, _ in QUESTIONS
        for _ in range(rounds)
    ]
    defined = [clock(lambda: asking.definition(tree, "make_tiled_copy", 10)) for _ in range(rounds)]
    used = [clock(lambda: asking.uses(tree, "make_tiled_copy", 20)) for _ in range(rounds)]
    matched = [
        clock(lambda: asking.grep(tree, r"struct SM90_TMA\w+", True, "", False, 20)) for _ in range(rounds)
    ]
    middle = [
        f"{1000 * statistics.median(times):.0f}" for times in (listed, searched, defined, used, matched)
    ]
    middle[1] += f" ({1000 * max(searched):.0f})"
    megabytes = sum(bytes_ for bytes_, _ in listing.files.values()) / 1e6
    cells = [
        tree.name,
        len(listing.files),
        f"{megabytes:.1f}",
        chunks,
        f"{wall:.1f} ({processor:.1f})",
        f"{size / 1e6:.0f}",
        *middle,
    ]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    shutil.rmtree(index.folder())


def clock(work: object) -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
