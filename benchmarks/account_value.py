"""What the time account adds to the diagnosis of recorded planted defects, against each diagnostic alone.

    python benchmarks/account_value.py FILE.jsonl.gz ...

`account`: findings as the diagnosis ranks them; causes come before symptoms, and gains share the account's
parts. `raw`: the same findings by each diagnostic's own gain, none a symptom, and gains that multiply. Prints
how often the planted defect is the top finding and among the first three, and the expected over the measured
gain of two defects together.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planted.score import FIRST, MIN_EFFECT, find_accepted, lacks_counters, score
from planted_defects import read

from kernelpro.diagnose import runner
from kernelpro.diagnose.claims import UNEXPLAINED
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import Finding, Profile


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    rows = [row for row in read(parser.parse_args().files) if "error" not in row and not lacks_counters(row)]
    rows = [row for row in rows if row["ms"]["defective"] >= MIN_EFFECT * row["ms"]["healthy"]]
    diagnostics = list(registry().values())
    table: dict[str, list[tuple[int, tuple[int, ...], float | None]]] = {"account": [], "raw": []}
    for row in rows:
        accepted = find_accepted(row["case"])
        measured = row["ms"]["defective"] / row["ms"]["healthy"]
        ranked = score(row)
        ratio = ranked.predicted / measured if ranked.predicted else None
        table["account"].append((len(accepted), ranked.ranks, ratio))
        findings = runner.diagnose(Profile.from_json(row["profiles"]["defective"]), diagnostics).findings
        raw = sorted(
            (finding for finding in findings if finding.diagnostic != UNEXPLAINED),
            key=lambda finding: (-finding.gain.factor, finding.diagnostic),
        )
        table["raw"].append((len(accepted), ranks(raw, accepted), product(raw, accepted, measured)))
    print("| | top finding, one defect | both in the first three, two defects | two defects: median gain |")
    print("|---|---|---|---|")
    for name, results in table.items():
        singles = [found for count, found, _ in results if count == 1]
        pairs = [(found, ratio) for count, found, ratio in results if count == 2]
        first = sum(1 in found for found in singles)
        both = sum(all(0 < rank <= FIRST for rank in found) for found, _ in pairs)
        ratios = [ratio for _, ratio in pairs if ratio]
        spread = math.exp(statistics.fmean(abs(math.log(ratio)) for ratio in ratios))
        print(
            f"| {name} | {first} of {len(singles)} | {both} of {len(pairs)} | "
            f"{statistics.median(ratios):.2f}, off by {spread:.2f}x on average |"
        )


def ranks(findings: list[Finding], accepted: Iterable[tuple[str, ...]]) -> tuple[int, ...]:
    """Rank of each planted defect; 0: not found."""
    order = list(dict.fromkeys(finding.diagnostic for finding in findings))
    return tuple(next((rank for rank, name in enumerate(order, 1) if name in names), 0) for names in accepted)


def product(findings: list[Finding], accepted: Any, measured: float) -> float | None:
    """Expected over measured gain, if gains simply multiply."""
    gains = [
        next((finding.gain.factor for finding in findings if finding.diagnostic in names), None)
        for names in accepted
    ]
    return math.prod(gain for gain in gains if gain) / measured if all(gains) else None


if __name__ == "__main__":
    main()
