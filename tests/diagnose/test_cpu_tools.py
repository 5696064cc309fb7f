"""CPU tools over the corpus of planted defects: each candidate is built, called and watched in a process of its own.

Run as a program, this file prints the findings on one candidate: `python test_cpu_tools.py tests/defects/cpu/d_imbalance.py`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernelpro.diagnose import Scene
from kernelpro.diagnose.tool import Missing
from kernelpro.diagnose.tools import registry
from kernelpro.records import Bound, Finding, Profile

DEFECTS = Path(__file__).parents[1] / "defects"
CANDIDATES = sorted((DEFECTS / "cpu").glob("*.py"))
TOOLS = {name: tool for name, tool in registry().items() if tool.target == "cpu"}


def header(path: Path) -> dict[str, str]:
    """The fields of a candidate's first line."""
    first, *fields = path.read_text().splitlines()[0].removeprefix("# ").split(" | ")
    kind, _, tools = first.partition(": ")
    return {"kind": kind, "tools": tools} | dict(field.split(": ", 1) for field in fields)


def profile(path: Path, seconds: float = 0.6) -> Profile:
    """Build, call and watch one candidate in this process."""
    import torch

    from kernelpro.lab import tree
    from kernelpro.lab.judge import physics
    from kernelpro.lab.profile import cpu
    from kernelpro.lab.tasks import work
    from kernelpro.lab.tasks.reference import Reference
    from kernelpro.records import Task

    reference = Reference(Task.from_file(DEFECTS / "cpu_tasks" / f"{header(path)['task']}.py"), "cpu", 0)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.ModelNew(*reference.init_inputs)
    model.load_state_dict(reference.state())
    form, leaves = reference.inputs(1)
    arguments = tree.unpack(form, leaves)
    with torch.no_grad():
        truth = reference.model(torch.float64)(*[a.double() if a.is_floating_point() else a for a in arguments])
        error = float((model(*arguments) - truth).abs().max() / truth.abs().max())
        assert error < 5e-6, f"wrong by {error:.1e}"
        dynamic = cpu.observe(lambda: model(*arguments), seconds)
    text = re.search(r'runtime\.cpp\(r"""(.*?)"""', path.read_text(), re.DOTALL)
    assert text
    sources = {"kernel.cpp": text[1]}
    static = cpu.analyse({module.lib.path.name: module.lib.path.read_bytes()}, sources)
    ceilings, needed = physics.measured("cpu", "corpus"), work.count(reference, 1)
    return Profile(
        target="cpu",
        time_ms=dynamic["best_ms"],
        floor_ms=physics.floor_ms(needed, ceilings, "fp32"),
        work={"read_bytes": needed.read_bytes, "written_bytes": needed.written_bytes, "matrix_flops": needed.matrix_flops},
        ceilings=vars(ceilings),
        device={},
        precision="fp32",
        language="cpp",
        source=path.read_text(),
        cpu=cpu.join(static, dynamic, sources),
    )


def findings(profile: Profile) -> list[Finding]:
    """What all CPU tools say, by gain, symptoms after their causes."""
    heavy = profile.work["matrix_flops"] > 0 and profile.floor_ms > 1e3 * (
        profile.work["read_bytes"] + profile.work["written_bytes"]
    ) / float(profile.ceilings["bandwidth"])
    scene = Scene(profile, Bound.COMPUTE if heavy else Bound.MEMORY)
    found = []
    for tool in TOOLS.values():
        try:
            result = tool.look(scene)
        except Missing:
            continue
        if result is not None:
            found.append(scene.finding(tool, result))
    fired = {finding.tool for finding in found}
    return sorted(found, key=lambda f: (bool(fired & set(TOOLS[f.tool].symptom_of)), -f.gain.factor))


@cache
def watched(path: Path) -> tuple[dict[str, Any], list[Finding]]:
    """The profile's facts and the findings on a candidate, from a process of its own."""
    done = subprocess.run([sys.executable, __file__, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["profile"], [Finding.from_json(finding) for finding in answer["findings"]]


@pytest.mark.parametrize("path", [p for p in CANDIDATES if p.name.startswith("d_")], ids=lambda p: p.stem)
def test_a_planted_defect_is_among_the_first_three_findings(path: Path) -> None:
    wanted = header(path)["tools"].split("/")
    names = [finding.tool for finding in watched(path)[1]]
    assert set(wanted) & set(names[:3]), f"{wanted} not in {names}"


def test_nine_in_ten_planted_defects_come_first() -> None:
    planted = {p: header(p)["tools"].split("/") for p in CANDIDATES if p.name.startswith("d_")}
    first = {path: next((finding.tool for finding in watched(path)[1]), "nothing") for path in planted}
    missed = {path.stem: first[path] for path, wanted in planted.items() if first[path] not in wanted}
    assert len(missed) <= len(planted) / 10, missed


@pytest.mark.parametrize("path", [p for p in CANDIDATES if p.name.startswith("c_")], ids=lambda p: p.stem)
def test_a_healthy_candidate_is_not_accused(path: Path) -> None:
    severe = [f"{f.tool}: {f.cause} ({f.gain.how})" for f in watched(path)[1] if f.severity == "high"]
    assert not severe


@pytest.mark.parametrize("path", [p for p in CANDIDATES if p.name.startswith("d_")], ids=lambda p: p.stem)
def test_findings_speak_in_numbers_and_point_to_a_line(path: Path) -> None:
    facts, found = watched(path)
    for finding in found:
        assert finding.evidence and finding.cause and finding.advice and finding.gain.how
        assert finding.gain.factor >= 1
        if finding.where:
            assert re.fullmatch(r"kernel\.cpp:\d+", finding.where)
    assert facts["sampled"]


def test_the_corpus_is_large_enough_and_every_tool_has_its_case() -> None:
    planted = [header(p) for p in CANDIDATES if p.name.startswith("d_")]
    assert len(planted) >= 9
    assert len([p for p in CANDIDATES if p.name.startswith("c_")]) >= 4
    assert {tool for head in planted for tool in head["tools"].split("/")} == set(TOOLS) - {"cpu_memory_roof"}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    made = profile(Path(sys.argv[1]))
    facts = made.cpu | {"time_ms": made.time_ms, "floor_ms": made.floor_ms}
    print(json.dumps({"profile": facts, "findings": [finding.to_json() for finding in findings(made)]}))
