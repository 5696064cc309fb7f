"""Defects in the machine code are found without a GPU: candidates are built for Hopper, disassembled and diagnosed.

The profile has neither timeline nor counters: only device properties, the task's work, the time that the corpus
expects, and the compilers' output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from defects.building import about

from kernelpro.diagnose import runner
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.languages.cuda import nvcc
from kernelpro.lab.measure import physics
from kernelpro.lab.profile import sass
from kernelpro.records import (
    Ceilings,
    CompilerReport,
    DeviceProperties,
    Diagnosis,
    Kernel,
    KernelCode,
    Profile,
    Work,
)

CANDIDATES = [
    path for path in sorted((Path(__file__).parent / "gpu").glob("d_*.py")) if about(path)["static"] == "yes"
]

USUAL = (
    "double_precision",
    "spills",
)
"""What `make test` builds: each takes seconds."""
CEILINGS = Ceilings(4.23e12, 4.94e12, 62914560, {"fp32": 51.1e12, "tf32": 411e12, "bf16": 785e12})
DEVICE = DeviceProperties(
    name="NVIDIA H200",
    capability="9.0",
    sms=132,
    warp=32,
    sector=32,
    max_threads_per_sm=2048,
    max_warps_per_sm=64,
    max_blocks_per_sm=32,
    registers_per_sm=65536,
    shared_per_sm=233472,
    shared_per_block_max=232448,
    l2_bytes=62914560,
    fp32_to_fp64=2,
    dram_bandwidth=CEILINGS.bandwidth,
    clock_mhz=1980.0,
)
"""As measured and read on an H200."""


def missing_tool(path: Path) -> str:
    """Why this candidate cannot be built here; empty where it can."""
    if about(path)["language"] == "triton" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if about(path)["language"] == "cuda" and nvcc() is None:
        return "nvcc not found"
    return next(
        (f"{name} not found" for name in ("nvdisasm", "cuobjdump") if sass.find_tool(name) is None), ""
    )


@pytest.fixture(scope="session")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """All candidates of this test run that can be built here, built once, in parallel."""
    requested = [
        item.callspec.params["path"]
        for item in request.session.items
        if "built" in getattr(item, "fixturenames", ())
    ]
    paths = [str(path) for path in requested if not missing_tool(path)]
    program = Path(__file__).with_name("building.py")
    command = [sys.executable, program, tmp_path_factory.mktemp("built"), *paths]
    # a process forked from one with an OpenMP thread team would wait for its threads forever
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    candidates = [json.loads(line) for line in done.stdout.splitlines()]
    return {candidate["name"]: candidate for candidate in candidates}


def diagnosis(path: Path, facts: dict[str, Any]) -> Diagnosis:
    work = Work.from_json(facts["work"])
    unit = physics.compute_unit("cuda", facts["precision"], torch.bfloat16)
    floor = physics.floor_ms(work, CEILINGS, unit)
    time_ms = floor * float(about(path)["expect"].removesuffix("x"))
    [(name, [variant])] = facts["kernels"].items()
    code = KernelCode.from_json(variant)
    kernel = Kernel(
        name,
        microseconds=1e3 * time_ms,
        launches=1,
        share=1,
        grid=tuple(facts["grid"]),
        block=(code.threads,) if code.threads else (),
        registers=code.registers or 0,
        static_shared=code.shared,
        dynamic_shared=code.dynamic_shared or 0,
        code=code,
    )
    profile = Profile(
        target="cuda",
        time_ms=time_ms,
        floor_ms=floor,
        work=work,
        ceilings=CEILINGS,
        device=DEVICE,
        precision=facts["precision"],
        language=about(path)["language"],
        source=path.read_text(encoding="utf-8"),
        kernels=(kernel,),
        compiler=CompilerReport(tuple(facts["warnings"])),
    )
    return runner.diagnose(profile, registry().values())


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem[2:] not in USUAL))
        for path in CANDIDATES
    ],
)
def test_a_defect_in_the_machine_code_is_the_first_finding(
    path: Path, built: dict[str, dict[str, Any]]
) -> None:
    if reason := missing_tool(path):
        pytest.skip(reason)
    assert not built[path.stem]["skipped"]
    answer = diagnosis(path, built[path.stem])
    findings = [f"{finding.diagnostic} {finding.gain.factor}" for finding in answer.findings]
    assert answer.findings and answer.findings[0].diagnostic in about(path)["defect"].split("/"), findings
    assert answer.findings[0].evidence and answer.findings[0].advice


def test_the_corpus_has_what_can_be_seen_without_a_gpu() -> None:
    assert len(CANDIDATES) >= 12
    assert {about(path)["language"] for path in CANDIDATES} == {"cuda", "triton"}
