"""Check whether the diagnosis finds planted defects.

    python benchmarks/diagnose_defects.py --out DIR [--only NAME ...] [--no-ncu]
    python benchmarks/diagnose_defects.py --again FILE     # diagnose recorded profiles, without a GPU

Profiles every kernel of tests/defects/gpu (stage 1 in its own sandbox, then counters) and diagnoses it.
Prints the rank of each planted defect's diagnostic, and whether a healthy kernel gets a severe finding. To
save time, few runs of ncu collect the counters of all kernels, over the union of what their classes need;
each diagnosis then runs only the diagnostics that the kernel's own class selects, as `kernelpro profile`
does. The profiles go to DIR/profiles.json.gz, so that diagnostics can be improved against recorded
measurements, such as tests/defects/recorded/h200.json.gz.
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
from kernelpro.records import (  # noqa: E402
    Candidate,
    Diagnosis,
    Finding,
    Options,
    Profile,
    ProfileRequest,
    Severity,
    Task,
)

_CHUNK = 12
"""Kernels in one run of ncu: a kernel that kills the process loses the counters of at most so many."""


def read_header(path: Path) -> dict[str, str]:
    """Parse the first line of a kernel's file: `# task: NAME | defect: DIAGNOSTIC | ...`."""
    line = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return dict(part.strip().partition(": ")[::2] for part in line.split("|"))


def collect(paths: list[Path], with_ncu: bool) -> dict[str, Profile]:
    """Profile the kernels; returns profiles by name."""
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
    for path in sorted(paths, key=lambda p: read_header(p)["task"]):
        started = time.monotonic()
        task = Task.from_file(CORPUS / "tasks" / f"{read_header(path)['task']}.py")
        bench = Bench(task, "cuda", options, launcher, builds)
        try:
            bench.open(lambda _: None)
            collector = Collector(bench, candidates[path.stem], lambda _: None)
            profile = profiles[path.stem] = collector.collect(ProfileRequest())
            bound = roofline.classify(profile).bound
            request = runner.request_for(diagnostics, profile, bound)
            if request.metrics:
                bundles[path.stem] = collector.sandbox.make_bundle()
                metrics |= dict.fromkeys(request.metrics)
            times = f"{profile.time_ms:8.3f} ms  floor {profile.floor_ms:7.3f}"
            seconds = time.monotonic() - started
            print(f"{path.stem:32} {times}  {bound:8} {seconds:5.1f} s", flush=True)
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
            profiles |= collect_counters(chunk, [bundles[name] for name in chunk], profiles, tuple(metrics))
    return profiles


def collect_counters(
    names: list[str], bundles: list[dict[str, Any]], profiles: dict[str, Profile], metrics: tuple[str, ...]
) -> dict[str, Profile]:
    """Add counters from one run of ncu to these profiles."""
    import torch

    from kernelpro.lab.profile import ncu
    from kernelpro.lab.profile.collect import add_counters

    program = ncu.find_ncu()
    if program is None:
        print("ncu not found: no counters")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(bundles, f"{folder}/bundles.pt")
        target = [sys.executable, "-m", "kernelpro.lab.profile.profiled_program", "bundles.pt", "ncu"]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "KERNELPRO_BUILD_DIR": folder,
            "TRITON_CACHE_DIR": f"{folder}/t",
            "TORCH_EXTENSIONS_DIR": f"{folder}/e",
        }
        started, pages = time.monotonic(), []
        for command in ncu.commands(program, target, metrics, False, (), launches=1000):
            process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if process.returncode:
                print(f"ncu: {(process.stdout + process.stderr)[-1500:]}")
            pages.append(process.stdout)
        print(f"ncu over {len(names)} candidates: {time.monotonic() - started:.1f} s", flush=True)
    counters = ncu.parse_raw_page(pages[1], len(names), marked=len(names) > 1)
    return {
        name: add_counters(profiles[name], kernels, {}) for name, kernels in zip(names, counters, strict=True)
    }


def describe_finding(finding: Finding) -> str:
    """Diagnostic, gain, first letter of the severity, and the finding that explains it."""
    explained = f"<{finding.explained_by}" if finding.explained_by else ""
    return f"{finding.diagnostic} {finding.gain.factor:.2f}{finding.severity[0]}{explained}"


def print_score(profiles: dict[str, Profile], without_counters: bool = False) -> None:
    """Print a line for each kernel, and the score."""
    diagnostics = list(registry().values())
    first = third = defects = clean = controls = 0
    for name, profile in sorted(profiles.items()):
        if without_counters:
            profile = replace(
                profile, kernels=tuple(replace(k, metrics={}, lines=()) for k in profile.kernels)
            )
        diagnosis: Diagnosis = runner.diagnose(profile, diagnostics)
        header = read_header(CORPUS / "gpu" / f"{name}.py")
        ranking = list(dict.fromkeys(finding.diagnostic for finding in diagnosis.findings))
        top = "; ".join(map(describe_finding, diagnosis.findings[:4]))
        if "defect" in header:
            planted = header["defect"].split("/")
            rank = next((rank for rank, diagnostic in enumerate(ranking, 1) if diagnostic in planted), 0)
            defects, first, third = defects + 1, first + (rank == 1), third + (0 < rank <= 3)
            mark = {0: "MISSED", 1: "ok"}.get(rank, f"rank {rank}")
        else:
            severe = any(finding.severity is Severity.HIGH for finding in diagnosis.findings)
            controls, clean = controls + 1, clean + (not severe)
            mark = "SEVERE" if severe else "clean"
        print(f"{name:30} {mark:7} {profile.time_ms:7.3f}/{profile.floor_ms:.3f} {diagnosis.bound:8} | {top}")
    print(f"{first} of {defects} defects are the top finding, {third} among the first three")
    print(f"{clean} of {controls} healthy kernels without a severe finding")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the profiles here")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="no GPU: diagnose the profiles.json.gz that --out wrote"
    )
    parser.add_argument("--only", nargs="*", metavar="NAME", help="kernels; default: all")
    parser.add_argument("--no-ncu", action="store_true", help="collect no counters")
    arguments = parser.parse_args()
    if not (arguments.again or arguments.out):
        parser.error("give --out DIR to profile, or --again FILE to diagnose recorded profiles")
    if arguments.again:
        text = gzip.decompress(arguments.again.read_bytes())
        profiles = {name: Profile.from_json(data) for name, data in json.loads(text).items()}
    else:
        paths = [
            p
            for p in sorted((CORPUS / "gpu").glob("[cd]_*.py"))
            if not arguments.only or p.stem in arguments.only
        ]
        profiles = collect(paths, not arguments.no_ncu)
        arguments.out.mkdir(parents=True, exist_ok=True)
        data = json.dumps({name: profile.to_json() for name, profile in profiles.items()}).encode()
        (arguments.out / "profiles.json.gz").write_bytes(gzip.compress(data))
    print("with counters")
    print_score(profiles)
    print("without counters")
    print_score(profiles, without_counters=True)


if __name__ == "__main__":
    main()
