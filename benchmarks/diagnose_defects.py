"""Planted defects: does the diagnosis find them?

    python benchmarks/diagnose_defects.py --out DIR [--only NAME ...] [--no-ncu]
    python benchmarks/diagnose_defects.py --again DIR        # diagnose the recorded profiles once more, without a GPU

Profiles every candidate of tests/defects/gpu (stage 1 in its own sandbox, then counters), diagnoses it, and prints the
rank of the diagnostic of each planted defect, and the worst severity of each healthy control. To save time it collects
the counters of all candidates in few runs of ncu, over the union of what their classes need; each diagnosis then runs
only the diagnostics that the candidate's own class selects, as `kernelpro profile` does. It writes the profiles to DIR,
so that diagnostics can be improved against recorded measurements.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
CORPUS = ROOT / "tests" / "defects"

from kernelpro.diagnose import roofline, runner  # noqa: E402
from kernelpro.diagnose.diagnostics import registry  # noqa: E402
from kernelpro.records import Candidate, Diagnosis, Options, Profile, ProfileRequest, Severity, Task  # noqa: E402

_CHUNK = 12
"""Candidates in one run of ncu: one that kills the process takes no more with it."""


def about(path: Path) -> dict[str, str]:
    line = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return dict(part.strip().partition(": ")[::2] for part in line.split("|"))


def collect(paths: list[Path], with_ncu: bool) -> dict[str, Profile]:
    """Profiles by name, counted together."""
    import torch

    from kernelpro.lab.measure.bench import Bench
    from kernelpro.lab.profile.collect import Collector
    from kernelpro.lab.sandbox.builds import Builds
    from kernelpro.lab.sandbox.launcher import SandboxLauncher
    from kernelpro.lab.sandbox.outputs import CandidateRejected

    diagnostics = list(registry().values())
    launcher = SandboxLauncher()
    builds = Builds(launcher)
    options = Options()
    candidates = {path.stem: Candidate.from_file(path) for path in paths}
    for candidate in candidates.values():
        builds.begin(candidate, "cuda", options)
    profiles: dict[str, Profile] = {}
    bundles: dict[str, dict[str, Any]] = {}
    metrics: dict[str, None] = {}
    for path in sorted(paths, key=lambda p: about(p)["task"]):
        begun = time.monotonic()
        task = Task.from_file(CORPUS / "tasks" / f"{about(path)['task']}.py")
        bench = Bench(task, "cuda", options, launcher, builds)
        try:
            bench.open(lambda _: None)
            collector = Collector(bench, candidates[path.stem], lambda _: None)
            found = profiles[path.stem] = collector.collect(ProfileRequest())
            bound = roofline.classify(found).bound
            request = runner.request_for(diagnostics, found, bound)
            if request.metrics:
                bundles[path.stem] = collector.sandbox.make_bundle()
                metrics |= dict.fromkeys(request.metrics)
            print(
                f"{path.stem:32} {found.time_ms:8.3f} ms  floor {found.floor_ms:7.3f}  {bound:8} {time.monotonic() - begun:5.1f} s",
                flush=True,
            )
        except CandidateRejected as error:
            print(f"{path.stem:32} FAILED {error.status}: {error.reason[:300]}", flush=True)
        finally:
            bench.close()
        torch.cuda.empty_cache()
    launcher.close()
    if with_ncu:
        names = list(bundles)
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            profiles |= count(chunk, [bundles[name] for name in chunk], profiles, tuple(metrics))
    return profiles


def count(
    names: list[str], bundles: list[dict[str, Any]], profiles: dict[str, Profile], metrics: tuple[str, ...]
) -> dict[str, Profile]:
    """These profiles with counters, from one run of ncu."""
    import torch

    from kernelpro.lab.profile import ncu
    from kernelpro.lab.profile.collect import add_counters

    program = ncu.find_ncu()
    if program is None:
        print("no ncu here")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(bundles, f"{folder}/bundles.pt")
        target = [sys.executable, "-m", "kernelpro.lab.profile.profiled_program", "bundles.pt", "ncu"]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "KERNELPRO_BUILD_DIR": folder,
            "TRITON_CACHE_DIR": f"{folder}/t",
        }
        environment |= {"TORCH_EXTENSIONS_DIR": f"{folder}/e"}
        begun, pages = time.monotonic(), []
        for command in ncu.commands(program, target, metrics, False, (), launches=1000):
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(f"ncu: {(done.stdout + done.stderr)[-1500:]}")
            pages.append(done.stdout)
        print(f"ncu over {len(names)} candidates: {time.monotonic() - begun:.1f} s", flush=True)
    found = ncu.parse_raw_page(pages[1], len(names))
    made = {}
    for name, counted in zip(names, found, strict=True):
        made[name] = add_counters(profiles[name], counted, {})
    return made


def show(profiles: dict[str, Profile], without_counters: bool = False) -> dict[str, Any]:
    """A line for each candidate; returns the score."""
    diagnostics = list(registry().values())
    first = third = defects = clean = controls = 0
    for name, profile in sorted(profiles.items()):
        if without_counters:
            profile = replace(
                profile, kernels=tuple(replace(k, metrics={}, lines=()) for k in profile.kernels)
            )
        diagnosis: Diagnosis = runner.diagnose(profile, diagnostics)
        header = about(CORPUS / "gpu" / f"{name}.py")
        ranks = list(dict.fromkeys(finding.diagnostic for finding in diagnosis.findings))
        top = "; ".join(
            f"{f.diagnostic} {f.gain.factor:.2f}{f.severity[0]}{'<' + f.explained_by if f.explained_by else ''}"
            for f in diagnosis.findings[:4]
        )
        if "defect" in header:
            planted = header["defect"].split("/")
            rank = next((i for i, name in enumerate(ranks, 1) if name in planted), 0)
            defects, first, third = defects + 1, first + (rank == 1), third + (0 < rank <= 3)
            mark = {0: "MISSED", 1: "ok"}.get(rank, f"rank {rank}")
        else:
            severe = any(finding.severity is Severity.HIGH for finding in diagnosis.findings)
            controls, clean = controls + 1, clean + (not severe)
            mark = "SEVERE" if severe else "clean"
        print(f"{name:30} {mark:7} {profile.time_ms:7.3f}/{profile.floor_ms:.3f} {diagnosis.bound:8} | {top}")
    score = {"defects": defects, "first": first, "first_three": third, "controls": controls, "clean": clean}
    print(score)
    return score


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--no-ncu", action="store_true")
    chosen = parser.parse_args()
    if chosen.again:
        text = gzip.decompress((chosen.again / "profiles.json.gz").read_bytes())
        profiles = {name: Profile.from_json(data) for name, data in json.loads(text).items()}
    else:
        paths = [
            p for p in sorted((CORPUS / "gpu").glob("[cd]_*.py")) if not chosen.only or p.stem in chosen.only
        ]
        profiles = collect(paths, not chosen.no_ncu)
        chosen.out.mkdir(parents=True, exist_ok=True)
        data = json.dumps({name: profile.to_json() for name, profile in profiles.items()}).encode()
        (chosen.out / "profiles.json.gz").write_bytes(gzip.compress(data))
    print("with counters")
    show(profiles)
    print("without counters")
    show(profiles, without_counters=True)


if __name__ == "__main__":
    main()
