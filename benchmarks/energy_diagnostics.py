"""Check whether the energy diagnostics find planted waste and predict its cost.

    python benchmarks/energy_diagnostics.py MEASURED --out FILE [--pairs NAME ...]
    python benchmarks/energy_diagnostics.py MEASURED --again FILE      # diagnose recorded profiles, without a
    GPU

MEASURED is the output of `energy.py --out`: the waste that cost no time, and the energy it took. The
benchmark profiles the wasteful and the lean kernel of each pair with energy as an objective and writes the
profiles to FILE. The first table has the measured waste and the savings that the findings predict for both
kernels. The second compares the energy model with measured joules.

Exit code 0: for every waste of 5 % of the energy or more (the threshold of the diagnostics is 3 %), a
diagnostic matches the wasteful kernel that does not match the lean one.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from energy import PAIRS, read_header, with_waste  # noqa: E402

from kernelpro.diagnose import energy_model, roofline, runner  # noqa: E402
from kernelpro.diagnose.diagnostic import DiagnosticContext  # noqa: E402
from kernelpro.diagnose.diagnostics import registry  # noqa: E402
from kernelpro.engine.profiling import ProfileSpec, profile  # noqa: E402
from kernelpro.pools.local import LocalPool  # noqa: E402
from kernelpro.records import Candidate, Job, Profile, Result, Task  # noqa: E402

_MIN_WASTE = 0.05
"""Share of the energy from which on a diagnostic must match."""


def profile_pair(pool: LocalPool, name: str, waste: int) -> dict[str, Any]:
    """Profile the wasteful and the lean kernel of a pair."""
    path = PAIRS / f"{name}.py"
    task = Task.from_file(PAIRS / f"{read_header(path)['task']}.py")

    async def run_job(job: Job) -> Result:
        return await asyncio.wrap_future(pool.submit(job))

    def profile_kernel(amount: int) -> dict[str, Any]:
        candidate = Candidate(with_waste(path.read_text(encoding="utf-8"), amount))
        spec = ProfileSpec(task, candidate, "cuda", energy=True)
        return asyncio.run(profile(run_job, spec, registry().values()))[0].to_json()

    return {"wasteful": profile_kernel(waste), "lean": profile_kernel(0)}


def predicted_savings(data: dict[str, Any]) -> dict[str, float]:
    """The share of the energy that each matching energy diagnostic predicts to save."""
    diagnosis = runner.diagnose(Profile.from_json(data), registry().values(), energy=True)
    return {
        finding.diagnostic: 1 - 1 / finding.gain.factor
        for finding in diagnosis.findings
        if finding.objective == "energy"
    }


def measured_waste(measured: dict[str, Any]) -> tuple[float, float, float]:
    """The share of the wasteful kernel's energy that the waste takes, with its interval."""
    ratio = measured["energy"]["ratio"]["energy"]
    return 1 - 1 / ratio["value"], 1 - 1 / ratio["low"], 1 - 1 / ratio["high"]


def waste_row(name: str, measured: dict[str, Any], *predictions: dict[str, float]) -> str:
    """Table row of a pair: measured waste and predicted savings."""
    share, low, high = measured_waste(measured)
    cells = [f"{share:.1%} [{low:.1%}, {high:.1%}]"]
    cells += [
        ", ".join(f"{diagnostic} {saving:.0%}" for diagnostic, saving in savings.items()) or "nothing"
        for savings in predictions
    ]
    return f"| {name} | {' | '.join(cells)} |"


def model_row(name: str, side: str, data: dict[str, Any], measured: dict[str, Any]) -> str:
    """Table row of a kernel: its clock, measured and modeled joules."""
    profile = Profile.from_json(data)
    bound = roofline.classify(profile).bound
    contexts = [DiagnosticContext(profile, bound, kernel) for kernel in profile.kernels]
    modeled = 1e-12 * sum(energy_model.energy_breakdown(context).total for context in contexts)
    measured_side = "candidate" if side == "wasteful" else side
    measured_joules = measured["energy"]["joules"][measured_side]["value"]
    clock = statistics.median(
        window["sm_mhz"] for window in measured["energy"]["windows"] if window["side"] == measured_side
    )
    joules = f"{1e3 * measured_joules:.1f} | {1e3 * modeled:.1f}"
    return f"| {name}, {side} | {clock:.0f} | {joules} | {modeled / measured_joules - 1:+.1%} |"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file, which may be compressed with gzip."""
    data = path.read_bytes()
    return dict(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path, metavar="MEASURED", help="output of energy.py --out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the profiles here, as JSON")
    parser.add_argument("--again", type=Path, metavar="FILE", help="no GPU: profiles that --out wrote")
    parser.add_argument("--pairs", nargs="*", default=[], metavar="NAME", help="only these pairs")
    arguments = parser.parse_args()
    pairs = read_json(arguments.measured)["pairs"]
    if unknown := [name for name in arguments.pairs if name not in pairs]:
        parser.error(f"{arguments.measured} has no pair {', '.join(unknown)}")
    measured = {
        name: row for name, row in pairs.items() if "waste" in row and name in (arguments.pairs or pairs)
    }
    if arguments.again:
        profiles = {name: pair for name, pair in read_json(arguments.again).items() if name in measured}
    else:
        with LocalPool() as pool:
            profiles = {name: profile_pair(pool, name, measured[name]["waste"]) for name in measured}
    if arguments.out:
        arguments.out.write_text(json.dumps(profiles, indent=1) + "\n")
    print("| pair | waste, of all energy | predicted for the wasteful kernel | for the lean kernel |")
    print("|---|---|---|---|")
    missed = []
    for name, pair in profiles.items():
        planted, lean = predicted_savings(pair["wasteful"]), predicted_savings(pair["lean"])
        print(waste_row(name, measured[name], planted, lean))
        if not planted.keys() - lean.keys() and measured_waste(measured[name])[0] >= _MIN_WASTE:
            missed.append(name)
    print("\n| kernel | MHz | measured, mJ | by the model, mJ | difference |\n|---|---|---|---|---|")
    for name, pair in profiles.items():
        for side in ("wasteful", "lean"):
            print(model_row(name, side, pair[side], measured[name]))
    if missed:
        print(f"\nno diagnostic matches {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
