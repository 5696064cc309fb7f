"""Do the tools that look for energy find what was planted, and do they promise what it costs? Without a GPU: by recorded profiles.

    python benchmarks/energy_tools.py MEASURED --out FILE [--pairs NAME ...]
    python benchmarks/energy_tools.py MEASURED --again FILE

MEASURED is what `energy.py --out` wrote: which waste was as fast as none, and the energy it took. For each pair the wasteful and
the lean kernel are profiled with energy as an objective. A row says what was measured, what each finding promises for the wasteful
kernel, and what for the lean one, where nothing was planted; a second table holds the joules of the tools' model against those that
were counted, which it gives for kernels at full clock. FILE gets the profiles; `--again` shows them to the tools of today.
Exit code 0: of every waste that took 5 % of the energy or more (tools are silent below 3 %) a tool speaks that has nothing to say
of the lean kernel.
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
from kernelpro.pools.local import Pool  # noqa: E402
from kernelpro.records import Candidate, Job, Profile, Result, Task  # noqa: E402

_WORTH = 0.05


def profiled(pool: Pool, name: str, waste: int) -> dict[str, Any]:
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


def promised(found: dict[str, Any]) -> dict[str, float]:
    """By each tool for energy that speaks of this profile: the share that it would save."""
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


def row(name: str, measured: dict[str, Any], *promises: dict[str, float]) -> str:
    share, least, most = taken(measured)
    cells = [f"{share:.1%} [{least:.1%}, {most:.1%}]"]
    cells += [
        ", ".join(f"{tool} {part:.0%}" for tool, part in found.items()) or "nothing" for found in promises
    ]
    return f"| {name} | {' | '.join(cells)} |"


def by_model(name: str, side: str, found: dict[str, Any], measured: dict[str, Any]) -> str:
    """A line for a kernel: its clock, what was counted, what the model says."""
    profile = Profile.from_json(found)
    bound = roofline.classify(profile).bound
    said = 1e-12 * sum(energy_model.energy_breakdown(DiagnosticContext(profile, bound, kernel)).total for kernel in profile.kernels)
    own = "candidate" if side == "wasteful" else side
    counted = measured["energy"]["joules"][own]["value"]
    clock = statistics.median(
        window["sm_mhz"] for window in measured["energy"]["windows"] if window["side"] == own
    )
    return f"| {name}, {side} | {clock:.0f} | {1e3 * counted:.1f} | {1e3 * said:.1f} | {said / counted - 1:+.1%} |"


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
        with Pool() as pool:
            profiles = {name: profiled(pool, name, measured[name]["waste"]) for name in measured}
    if chosen.out:
        chosen.out.write_text(json.dumps(profiles, indent=1) + "\n")
    print(
        "| pair | the waste takes, of all energy | promised for the wasteful one | for the lean one |\n|---|---|---|---|"
    )
    silent = []
    for name, found in profiles.items():
        planted, lean = promised(found["wasteful"]), promised(found["lean"])
        print(row(name, measured[name], planted, lean))
        if not planted.keys() - lean.keys() and taken(measured[name])[0] >= _WORTH:
            silent.append(name)
    print("\n| kernel | MHz | counted, mJ | by the model | |\n|---|---|---|---|---|")
    for name, found in profiles.items():
        for side in ("wasteful", "lean"):
            print(by_model(name, side, found[side], measured[name]))
    if silent:
        print(f"\nno tool speaks of {', '.join(silent)}")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
