"""Do the energy diagnostics find planted waste, and do they predict its cost? Also without a GPU, from recorded profiles.

    python benchmarks/energy_diagnostics.py MEASURED --out FILE [--pairs NAME ...]
    python benchmarks/energy_diagnostics.py MEASURED --again FILE

MEASURED is the output of `energy.py --out`: which waste cost no time, and the energy it took. The benchmark profiles the
wasteful and the lean kernel of each pair with energy as an objective. A row has the measured waste and the gains that the
findings predict for the wasteful and for the lean kernel. A second table compares the joules of the energy model with
measured joules, for kernels at full clock. The benchmark writes the profiles to FILE; `--again` diagnoses them once more.
Exit code 0: for every waste of 5 % of the energy or more (the threshold of the diagnostics is 3 %) a diagnostic matches
the wasteful kernel that does not match the lean one.
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

from energy import PAIRS, about, wasteful  # noqa: E402

from kernelpro.diagnose import energy_model, roofline, runner  # noqa: E402
from kernelpro.diagnose.diagnostic import DiagnosticContext  # noqa: E402
from kernelpro.diagnose.diagnostics import registry  # noqa: E402
from kernelpro.engine.profiling import ProfileSpec, profile  # noqa: E402
from kernelpro.pools.local import LocalPool  # noqa: E402
from kernelpro.records import Candidate, Job, Profile, Result, Task  # noqa: E402

_WORTH = 0.05


def profiled(pool: LocalPool, name: str, waste: int) -> dict[str, Any]:
    """The wasteful kernel of a pair and the lean one."""
    path = PAIRS / f"{name}.py"
    task = Task.from_file(PAIRS / f"{about(path)['task']}.py")

    async def ask(job: Job) -> Result:
        return await asyncio.wrap_future(pool.submit(job))

    def of(amount: int) -> dict[str, Any]:
        request = ProfileSpec(
            task, Candidate(wasteful(path.read_text(encoding="utf-8"), amount)), "cuda", energy=True
        )
        return asyncio.run(profile(ask, request, registry()))[0].to_json()

    return {"wasteful": of(waste), "lean": of(0)}


def predicted(found: dict[str, Any]) -> dict[str, float]:
    """By energy diagnostic that matches this profile: the share of the energy that it predicts to save."""
    diagnosis = runner.diagnose(Profile.from_json(found), registry().values(), energy=True)
    return {
        finding.diagnostic: 1 - 1 / finding.gain.factor
        for finding in diagnosis.findings
        if finding.objective == "energy"
    }


def taken(measured: dict[str, Any]) -> tuple[float, float, float]:
    """By the waste, of the wasteful kernel's energy, with its interval."""
    ratio = measured["energy"]["ratio"]["energy"]
    return 1 - 1 / ratio["value"], 1 - 1 / ratio["low"], 1 - 1 / ratio["high"]


def row(name: str, measured: dict[str, Any], *predictions: dict[str, float]) -> str:
    share, least, most = taken(measured)
    cells = [f"{share:.1%} [{least:.1%}, {most:.1%}]"]
    cells += [
        ", ".join(f"{name} {share:.0%}" for name, share in found.items()) or "nothing"
        for found in predictions
    ]
    return f"| {name} | {' | '.join(cells)} |"


def by_model(name: str, side: str, found: dict[str, Any], measured: dict[str, Any]) -> str:
    """A table row for a kernel: its clock, measured and modeled joules."""
    profile = Profile.from_json(found)
    bound = roofline.classify(profile).bound
    contexts = [DiagnosticContext(profile, bound, kernel) for kernel in profile.kernels]
    modeled = 1e-12 * sum(energy_model.energy_breakdown(context).total for context in contexts)
    own = "candidate" if side == "wasteful" else side
    measured_joules = measured["energy"]["joules"][own]["value"]
    clock = statistics.median(
        window["sm_mhz"] for window in measured["energy"]["windows"] if window["side"] == own
    )
    return f"| {name}, {side} | {clock:.0f} | {1e3 * measured_joules:.1f} | {1e3 * modeled:.1f} | {modeled / measured_joules - 1:+.1%} |"


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return dict(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path, help="no GPU: profiles that --out wrote")
    parser.add_argument("--pairs", nargs="*", default=[], help="only these")
    chosen = parser.parse_args()
    pairs = read(chosen.measured)["pairs"]
    if unknown := [name for name in chosen.pairs if name not in pairs]:
        parser.error(f"{chosen.measured} has no pair called {', '.join(unknown)}")
    measured = {
        name: found for name, found in pairs.items() if "waste" in found and name in (chosen.pairs or pairs)
    }
    if chosen.again:
        profiles = {name: found for name, found in read(chosen.again).items() if name in measured}
    else:
        with LocalPool() as pool:
            profiles = {name: profiled(pool, name, measured[name]["waste"]) for name in measured}
    if chosen.out:
        chosen.out.write_text(json.dumps(profiles, indent=1) + "\n")
    print(
        "| pair | the waste takes, of all energy | predicted for the wasteful one | for the lean one |\n|---|---|---|---|"
    )
    silent = []
    for name, found in profiles.items():
        planted, lean = predicted(found["wasteful"]), predicted(found["lean"])
        print(row(name, measured[name], planted, lean))
        if not planted.keys() - lean.keys() and taken(measured[name])[0] >= _WORTH:
            silent.append(name)
    print("\n| kernel | MHz | measured, mJ | by the model | |\n|---|---|---|---|---|")
    for name, found in profiles.items():
        for side in ("wasteful", "lean"):
            print(by_model(name, side, found[side], measured[name]))
    if silent:
        print(f"\nno diagnostic matches {', '.join(silent)}")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
