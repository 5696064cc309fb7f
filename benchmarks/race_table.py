"""A bench of the playbook with a race, as tables in Markdown.

    python benchmarks/race_table.py BENCH_DIR|ROWS.jsonl ... [--rows ROWS.jsonl] [--problems]

BENCH_DIR is the `--out` folder of `kernelpro bench SUITE --author playbook --race 1 ...`, finished or not.
The tables: results by level and by baseline, winners, device seconds, losses, distance from the floor (that
of products and convolutions is what the matrix unit allows), and what was not scored. `--rows` writes a row
for each problem, with how every design did in the race; the tables can be made again from these rows.
`--problems` adds a table of all problems.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from race_rows import NOT_BEGUN, UNFINISHED, Row, level_of, read_rows
from suite_rows import percentile

from kernelpro.records import Interval, Status
from kernelpro.suites.scoreboard import NOT_JUDGED, NOT_RUN, Table, first_names, markdown
from kernelpro.suites.statistics import summarize

_NOT_SCORED = (Status.NOT_SCORABLE.value, NOT_RUN, NOT_JUDGED, UNFINISHED, NOT_BEGUN)
_THRESHOLDS = ("1", "1.2", "1.5", "2")
_FAR_FROM_FLOOR = 10
_MAX_CELL = 160
_SHARES = (0.9, 0.75, 0.5, 0.0)
_BOUNDS = {"memory": "memory", "products": "products and convolutions"}


def best_speedup(row: Row) -> Interval | None:
    """Over the fastest baseline, that is, the smallest."""
    ratios = [Interval.from_json(ratio) for ratio in row.get("speedup", {}).values()]
    return min(ratios, key=lambda ratio: ratio.value, default=None)


def result_table(rows: Sequence[Row]) -> Table:
    """A line for each level, over the fastest baseline; then a line for each baseline, over all levels."""
    titles = ["level", "over", "scored", "correct", "geomean", *(f"> {p}" for p in _THRESHOLDS)]
    levels = sorted({level_of(row) for row in rows})
    groups: list[tuple[str, str, list[Interval | None]]] = [
        (str(level), "fastest baseline", [best_speedup(row) for row in rows if level_of(row) == level])
        for level in levels
    ]
    groups.append(("all", "fastest baseline", [best_speedup(row) for row in rows]))
    for name in dict.fromkeys(name for row in rows for name in row.get("speedup", {})):
        # a kernel counts only against baselines that it was timed against
        timed = [row for row in rows if not row.get("speedup") or name in row["speedup"]]
        ratios = [row["speedup"][name] if row.get("speedup") else None for row in timed]
        groups.append(("all", name, [Interval.from_json(ratio) if ratio else None for ratio in ratios]))
    lines = []
    for level, name, speedups in groups:
        summary = summarize(speedups)
        shares = [f"{summary.fast[p]:.2f} ({summary.surely_fast[p]:.2f} certain)" for p in _THRESHOLDS]
        mean = summary.geomean.format() if summary.geomean else ""
        lines.append([level, name, str(summary.problems), str(summary.correct), mean, *shares])
    return titles, lines


def win_table(rows: Sequence[Row]) -> Table:
    """How often each author and each language won, by level."""
    winners = [row for row in rows if row.get("winner")]
    levels = sorted({level_of(row) for row in winners})
    lines = []
    for what, key in (("author", "winner"), ("language", "language")):
        for name, count in Counter(row.get(key, "") for row in winners).most_common():
            by_level = Counter(level_of(row) for row in winners if row.get(key, "") == name)
            lines.append([what, name, *(str(by_level[level]) for level in levels), str(count)])
    return ["what", "winner", *(f"level {level}" for level in levels), "all"], lines


def winner_table(rows: Sequence[Row]) -> Table:
    """How often each author, language and form won, and by how much."""
    groups: dict[tuple[str, str, str], list[Interval | None]] = defaultdict(list)
    for row in rows:
        if row.get("winner"):
            key = row["winner"], row.get("language", ""), row.get("form", "")
            groups[key].append(best_speedup(row))
    lines = []
    for key, speedups in sorted(groups.items(), key=lambda item: -len(item[1])):
        mean = summarize(speedups).geomean
        lines.append([*key, str(len(speedups)), mean.format() if mean else ""])
    return ["author", "language", "form", "wins", "geomean over the fastest baseline"], lines


def seconds_table(rows: Sequence[Row]) -> Table:
    """Device and wall seconds of a problem by level; device seconds by use, then the stages of preparation
    and judgement."""
    columns: dict[str, list[float]] = {}
    for level in [*sorted({level_of(row) for row in rows}), None]:
        part = [row for row in rows if level in (None, level_of(row))]
        name = "all" if level is None else f"level {level}"
        columns[f"device, {name}"] = [sum(row["device_s"].values()) for row in part]
        columns[f"wall, {name}"] = [row["wall_s"] for row in part]
    for row in rows:
        for use, seconds in row["device_s"].items():
            columns.setdefault(f"device, {use}", []).append(seconds)
    for what, key in (("preparation", "preparation_s"), ("judgement", "judging_s")):
        for row in rows:
            for stage, seconds in row.get(key, {}).items():
                columns.setdefault(f"{what}, {stage}", []).append(seconds)
    lines = [
        [
            name,
            str(len(values)),
            *(f"{x:.2f}" for x in (statistics.median(values), percentile(values, 0.9))),
            f"{sum(values):.0f}",
        ]
        for name, values in columns.items()
        if values
    ]
    return ["seconds", "problems", "median", "p90", "total"], lines


def loss_table(rows: Sequence[Row]) -> Table:
    """Problems without a kernel that passed, and those certainly slower than the fastest baseline."""
    lines = []
    for row in rows:
        speedup = best_speedup(row)
        if row["status"] != Status.PASSED.value:
            failures = [f"{step['author']}: {step['status']}: {step['reason']}" for step in row["judged"]]
            why = "; ".join([row["reason"], *failures])
            lines.append([row["problem"], row["status"], "", "", _describe_race(row), why])
        elif speedup and speedup.high < 1:
            why = "; ".join(filter(None, [row.get("no_gain"), *row["notes"], row.get("seed_errors")]))
            fastest = fastest_baseline(row)
            lines.append([row["problem"], row["winner"], fastest, speedup.format(), _describe_race(row), why])
    return [
        "problem",
        "winner or status",
        "fastest baseline",
        "x fastest",
        "the playbook's designs",
        "why",
    ], lines


def fastest_baseline(row: Row) -> str:
    """The baseline over which the speed-up is smallest; empty without a winner."""
    ratios = row.get("speedup", {})
    return min(ratios, key=lambda name: ratios[name]["value"], default="")


def _describe_race(row: Row) -> str:
    """How the playbook's designs did in the race."""
    own = [design for design in row.get("race", ()) if design["author"] == "playbook"]
    if not own:
        return "none raced"
    ratios = [design["ratio"] for design in own if design["ratio"]]
    best = f"best {min(ratios):.2f}x the winner's time" if ratios else "none ran"
    failed = Counter(design["status"] for design in own if design["status"] != Status.PASSED.value)
    failures = "".join(f", {count} {status}" for status, count in failed.items())
    return f"{best} of {len(own)}{failures}"


def floor_table(rows: Sequence[Row]) -> Table:
    """How many winners reach which share of their floor: those whose floor is set by memory traffic, and
    those whose floor is set by matrix products."""
    lines = []
    for bound, name in _BOUNDS.items():
        timed = [row for row in rows if floor_share(row) and row.get("bound") == bound]
        for level in [*sorted({level_of(row) for row in timed}), None] if timed else []:
            shares = [floor_share(row) for row in timed if level in (None, level_of(row))]
            counts = Counter(next(limit for limit in _SHARES if share >= limit) for share in shares)
            cells = [name, "all" if level is None else str(level), str(len(shares))]
            cells.append(f"{statistics.median(shares):.0%}")
            lines.append([*cells, *(str(counts[limit]) for limit in _SHARES)])
    titles = ["bound by", "level", "winners", "median share of the floor"]
    return [*titles, ">= 90%", "75 to 90%", "50 to 75%", "< 50%"], lines


def floor_share(row: Row) -> float:
    """The share of its floor that the winner reaches; 0 without a winner or a floor."""
    return row["floor_ms"] / row["ms"] if row.get("ms") and row.get("floor_ms") else 0.0


def far_table(rows: Sequence[Row]) -> Table:
    """The winners with the largest multiple of their floor."""
    lines = []
    for row in sorted(filter(floor_share, rows), key=floor_share)[:_FAR_FROM_FLOOR]:
        parts = [f"{part['part']} {part['ms']:.3g} ms" for part in row.get("account", ())]
        times = [f"{row['ms']:.4g}", f"{row['floor_ms']:.4g}", f"{row['ms'] / row['floor_ms']:.1f}"]
        lines.append(
            [row["problem"], *times, row.get("bound", ""), row["winner"], ", ".join(parts) or "not recorded"]
        )
    return ["problem", "ms", "floor ms", "x floor", "bound", "winner", "time account"], lines


def excluded_table(rows: Sequence[Row]) -> Table:
    """Problems that count in no mean, and why."""
    begun = [row for row in rows if row["status"] != NOT_BEGUN]
    return ["problem", "status", "why"], [[row["problem"], row["status"], row["reason"]] for row in begun]


def problem_table(rows: Sequence[Row]) -> Table:
    """Every scored problem."""
    uses = list(dict.fromkeys(use for row in rows for use in row["device_s"]))
    baselines = list(dict.fromkeys(name for row in rows for name in row.get("speedup", {})))
    titles = ["problem", "verdict", "winner", "language", "form", "ms", *(f"x {name}" for name in baselines)]
    titles += ["fastest baseline", "x fastest", "of floor", "bound by", "raced", "failed"]
    titles += [*(f"{use} s" for use in uses), "device s", "wall s"]
    lines = []
    for row in rows:
        best, race = best_speedup(row), row.get("race", ())
        ratios = [row.get("speedup", {}).get(name) for name in baselines]
        lines.append(
            [
                row["problem"],
                row["status"],
                row.get("winner", ""),
                row.get("language", ""),
                row.get("form", ""),
                f"{row['ms']:.4g}" if row.get("ms") else "",
                *(Interval.from_json(ratio).format() if ratio else "" for ratio in ratios),
                fastest_baseline(row),
                best.format() if best else "",
                f"{floor_share(row):.0%}" if floor_share(row) else "",
                row.get("bound", ""),
                str(len(race)),
                str(sum(design["status"] != Status.PASSED.value for design in race)),
                *(f"{row['device_s'].get(use, 0):.1f}" for use in uses),
                f"{sum(row['device_s'].values()):.1f}",
                f"{row['wall_s']:.1f}",
            ]
        )
    return titles, lines


def remarks(all_rows: Sequence[Row]) -> list[str]:
    """What the tables do not show, one line each."""
    statuses = Counter(row["status"] for row in all_rows)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    lines = [f"- {len(all_rows)} problems: {counts}"]
    if missing := [row["problem"] for row in all_rows if row["status"] == NOT_BEGUN]:
        lines.append(f"- not begun: {first_names(missing)}")
    rows = [row for row in all_rows if row["status"] not in _NOT_SCORED]
    gains = Counter(row.get("faster") for row in rows if row.get("winner"))
    named = {"yes": "clearly faster", "no": "clearly slower", "unclear": "no clear difference"}
    counts = ", ".join(f"{count} {named.get(str(name), name)}" for name, count in gains.most_common())
    lines += [f"- against the fastest baseline: {counts}"] if counts else []
    raced = [design for row in rows for design in row.get("race", ())]
    failed = Counter(design["status"] for design in raced if design["status"] != Status.PASSED.value)
    failures = ", ".join(f"{count} {status}" for status, count in failed.most_common()) or "none failed"
    lines.append(f"- {len(raced)} designs raced; {failures}")
    machines = {f"{row['hardware']}, torch {row['torch']}" for row in rows if row.get("hardware")}
    efforts, precisions = (
        ", ".join(sorted({row[key] for row in rows if row.get(key)})) or "not recorded"
        for key in ("effort", "precision")
    )
    where = "; ".join(sorted(machines)) or "a machine that is not recorded"
    return [*lines, f"- measured on {where}; effort {efforts}, precision {precisions}"]


def format_tables(rows: Sequence[Row], with_problems: bool = False) -> str:
    """All tables."""
    scored = [row for row in rows if row["status"] not in _NOT_SCORED]
    finished = [row for row in rows if row["status"] not in (UNFINISHED, NOT_BEGUN)]
    excluded = [row for row in rows if row["status"] in _NOT_SCORED]
    parts: list[tuple[str, Table]] = [
        ("Results", result_table(scored)),
        ("Wins by author and language", win_table(scored)),
        ("Winners", winner_table(scored)),
        ("Device time", seconds_table(finished)),
        ("Losses", loss_table(scored)),
        ("Share of the floor", floor_table(scored)),
        ("Farthest from the floor", far_table(scored)),
        ("Not scored", excluded_table(excluded)),
    ]
    if with_problems:
        parts.append(("All scored problems", problem_table(scored)))
    sections = [f"## {title}\n\n{markdown(_shortened(table))}" for title, table in parts if table[1]]
    return "\n\n".join(["\n".join(remarks(rows)), *sections])


def _shortened(table: Table) -> Table:
    return table[0], [[" ".join(cell.split())[:_MAX_CELL] for cell in line] for line in table[1]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="BENCH_DIR|ROWS.jsonl")
    parser.add_argument("--rows", type=Path, help="write a row of data for each problem")
    parser.add_argument("--problems", action="store_true", help="add a table of all problems")
    options = parser.parse_args()
    rows = read_rows(options.paths)
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(format_tables(rows, options.problems))


if __name__ == "__main__":
    main()
