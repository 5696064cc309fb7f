"""Plant defects at random into healthy kernels, and check what the diagnosis says of them.

    python benchmarks/planted_defects.py --target cpu --seed 1 --count 50 --out FILE.jsonl.gz
    python benchmarks/planted_defects.py --times --builds DIR --out FILE.jsonl.gz    # on a quiet machine
    python benchmarks/planted_defects.py --again FILE.jsonl.gz ... [--misses]    # no measurement
    python benchmarks/planted_defects.py --target cpu --seed 1 --count 50 --write DIR    # the sources

Every case is a kernel with one planted defect or two, and its healthy twin (`benchmarks/planted/`). Both are
profiled, and timed in turn. The diagnosis should name the defect first, predict the gain that the twin shows,
and accuse no healthy twin. Cases whose defect costs less than a tenth are not ranked: it has no effect here.

`--out` appends to an existing file and skips the cases in it and in `--previous`, so a measurement can be
continued, elsewhere too; `--again` diagnoses recorded profiles, so that diagnostics can be improved without
measuring again. `--examples` adds the kernels in examples/gpu, which have no defect: their accounts add up,
and they deserve no severe finding. Kinds of defects, families and sizes follow from the seed: a seed that
nobody has looked at is a test set.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # CPU time is work then, no spinning

from planted.case import Case, generate  # noqa: E402
from planted.examples import FAMILY as EXAMPLE  # noqa: E402
from planted.examples import example_cases, print_examples  # noqa: E402
from planted.families import CPU, CUDA  # noqa: E402
from planted.score import lacks_counters, print_scores, score  # noqa: E402


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of these files."""
    rows = []
    for path in paths:
        with gzip.open(path, "rt") as lines:
            rows += [json.loads(line) for line in lines]
    return rows


def time_again(out: Path, builds: Path, minutes: float) -> None:
    """Time the pairs of a file again, on a quiet machine; what the time does not suffice for stays."""
    from planted import measure_cpu

    end = time.monotonic() + 60 * minutes
    rows = [measure_cpu.time_again(row, builds) if time.monotonic() < end else row for row in read([out])]
    with gzip.open(out, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def measure(cases: list[Case], out: Path, builds: Path, minutes: float, previous: Iterable[Path]) -> None:
    """Measure the cases that are in no file yet, until the time is over."""
    rows = read([path for path in (*previous, out) if path.exists()])
    finished = {tuple(row["case"][key] for key in ("name", "defective", "healthy")) for row in rows}
    fresh = [case for case in cases if (case.name, case.defective, case.healthy) not in finished]
    for row in _rows(fresh, builds, minutes):
        with gzip.open(out, "at") as lines:
            lines.write(json.dumps(row) + "\n")


def _rows(cases: list[Case], builds: Path, minutes: float) -> Iterator[dict[str, Any]]:
    if cases and cases[0].target == "cuda":
        from planted import measure_gpu

        yield from measure_gpu.measure(cases, builds, 60 * minutes)
        return
    from planted import measure_cpu

    end = time.monotonic() + 60 * minutes
    for case in cases:
        if time.monotonic() > end:
            return
        row = measure_cpu.measure(case, builds)
        times = row.get("error") or "{defective:.2f} / {healthy:.2f} ms".format(**row["ms"])
        print(f"{case.name:50} {row['seconds']:5.1f} s  {times}", flush=True)
        yield row


def _draw(arguments: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    families = CUDA if arguments.target == "cuda" else CPU
    cases = generate(families, arguments.seed, arguments.count)
    cases += example_cases() if arguments.examples else []
    return cases + generate(
        [family for family in CUDA if family.language == "cute"], arguments.seed, arguments.cute
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--cute", type=int, default=0, metavar="N", help="so many cases more in CuTe alone")
    parser.add_argument("--examples", action="store_true", help="also profile the kernels in examples/gpu")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no case after this time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append rows here (JSON lines, gzip)")
    parser.add_argument(
        "--previous", type=Path, nargs="*", default=[], metavar="FILE", help="skip the cases in these files"
    )
    parser.add_argument("--builds", type=Path, metavar="DIR", help="keep the built kernels here")
    parser.add_argument("--times", action="store_true", help="time the pairs in --out again (CPU)")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FILE", help="diagnose recorded profiles")
    parser.add_argument("--misses", action="store_true", help="print only cases that went wrong")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the sources and measure nothing")
    arguments = parser.parse_args()
    cases = [] if arguments.again else _draw(arguments)
    if arguments.write:
        for case in cases:
            folder = arguments.write / case.name
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in (("task", case.task), ("defective", case.defective), ("healthy", case.healthy)):
                (folder / f"{name}.py").write_text(text, encoding="utf-8")
        return
    if not (arguments.again or arguments.out):
        parser.error("give --out FILE to measure, --again FILE to diagnose, or --write DIR")
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        builds = arguments.builds or Path(scratch)
        if arguments.out and arguments.times:
            time_again(arguments.out, builds, arguments.minutes)
        elif arguments.out:
            measure(cases, arguments.out, builds, arguments.minutes, arguments.previous)
    rows = read(arguments.again or [arguments.out])
    for row in rows:
        if "error" in row:
            print(f"{row['case']['name']}: {row['error']}")
    print_examples(row for row in rows if row["case"]["family"] == EXAMPLE and "error" not in row)
    measured = [row for row in rows if row["case"]["family"] != EXAMPLE and "error" not in row]
    uncounted = [row for row in measured if lacks_counters(row)]
    print_scores([score(row) for row in measured if row not in uncounted], arguments.misses)
    if uncounted:
        print(f"\nwithout counters, because ncu was interrupted: {len(uncounted)}")
        print_scores([score(row) for row in uncounted], arguments.misses)


if __name__ == "__main__":
    main()
