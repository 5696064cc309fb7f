"""The time account on profiles recorded on an H200: it adds up, and findings claim it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from recorded_profiles import bare

from kernelpro.diagnose import Diagnostic, runner
from kernelpro.diagnose.account import make_account
from kernelpro.diagnose.account.parts import PARTS, summarize
from kernelpro.diagnose.claims import NEAR_FLOOR, UNEXPLAINED
from kernelpro.diagnose.diagnostic import ALL_PARTS
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import CpuLoop, CpuProfile, CpuRun, KernelLoop, PartKind, Profile
from kernelpro.records.cpu_profile import CpuShares
from kernelpro.report import profile_plot

RECORD = Path(__file__).parents[1] / "defects" / "recorded" / "h200.json.gz"
PROFILES = {
    name: Profile.from_json(data) for name, data in json.loads(gzip.decompress(RECORD.read_bytes())).items()
}
DIAGNOSTICS = list(registry().values())
MAIN_PART = {
    "d_bank_conflicts": "bank_conflicts",
    "d_divergence": "inactive_lanes",
    "d_excess_traffic": "dram_traffic",
    "d_host_gaps": "gaps",
    "d_integer_arithmetic": "integer_instructions",
    "d_l2_thrash": "dram_traffic",
    "d_launch_overhead": "gaps",
    "d_low_parallelism": "idle_sms",
    "d_memory_barriers": "waiting_at_fences",
    "d_narrow_access": "waiting_for_memory",
    "d_needless_copies_host": "copies",
    "d_occupancy_limiter": "waiting_for_memory",
    "d_precision_conversions": "conversions",
    "d_serialized_wgmma": "waiting_at_barriers",
    "d_special_functions": "special_functions",
    "d_tail_effect": "idle_sms",
    "d_uncoalesced_access": "wasted_sectors",
}
"""Of defects that consist of one part: that part is the largest above the floor."""


@pytest.mark.parametrize("counters", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("name", PROFILES)
def test_the_parts_add_up_to_the_measured_time(name: str, counters: bool) -> None:
    profile = PROFILES[name] if counters else bare(PROFILES[name])
    account = make_account(profile)
    assert account.total_ms == pytest.approx(profile.time_ms, rel=1e-6)
    assert all(part.low <= part.ms <= part.high and part.ms > 0 for part in account.parts)
    assert all("cuda" in PARTS[part.part].targets for part in account.parts)
    assert sum(row.ms for row in summarize(account.parts)) == pytest.approx(profile.time_ms, rel=0.006)


@pytest.mark.parametrize("name", MAIN_PART)
def test_a_simple_defect_is_the_largest_part_above_the_floor(name: str) -> None:
    assert summarize(make_account(PROFILES[name]).surplus)[0].part == MAIN_PART[name]


@pytest.mark.parametrize("name", PROFILES)
def test_findings_save_no_more_than_what_is_above_the_floor(name: str) -> None:
    diagnosis = runner.diagnose(PROFILES[name], DIAGNOSTICS)
    surplus = sum(part.ms for part in diagnosis.account if part.part != "floor")
    assert sum(finding.saves_ms for finding in diagnosis.findings) <= surplus * (1 + 1e-9)


@pytest.mark.parametrize("name", PROFILES)
def test_below_the_floor_s_vicinity_there_is_always_a_finding(name: str) -> None:
    """Also if no diagnostic ran at all."""
    profile = PROFILES[name]
    alone = [finding.diagnostic for finding in runner.diagnose(profile, []).findings]
    assert alone == ([UNEXPLAINED] if profile.floor_ms < NEAR_FLOOR * profile.time_ms else [])


def test_unexplained_time_names_its_parts_lines_and_advice() -> None:
    (finding,) = runner.diagnose(PROFILES["d_barrier_stall"], []).findings
    assert "shared memory accesses" in finding.cause and "kernel.cu:16" in finding.where
    assert finding.advice and finding.claims[0] == "shared_memory" and finding.kernel == "row_energy_kernel"


def test_a_tree_reduction_that_keeps_the_sm_busy_is_found() -> None:
    """Barriers every few instructions, but few stalls there: other warps issue meanwhile."""
    profile = PROFILES["d_barrier_stall"]
    kernel = profile.kernels[0]
    stall = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
    metrics = kernel.metrics | {stall: 3.0, "sm__throughput.avg.pct_of_peak_sustained_elapsed": 91.0}
    busy = replace(profile, kernels=(replace(kernel, metrics=metrics),))
    assert runner.diagnose(busy, DIAGNOSTICS).findings[0].diagnostic == "barrier_stall"


def test_accesses_of_single_bytes_are_the_cause_of_their_addresses() -> None:
    profile = PROFILES["d_integer_arithmetic"]
    kernel = profile.kernels[0]
    assert kernel.code is not None
    widths = {"global_load": {"8": 1}, "global_store": {"8": 1}}
    mix = {"alu": 12, "global_load": 1, "global_store": 1, "fma32": 1, "branch": 1}
    loop = KernelLoop(mix, 16, True, widths, "kernel.cu:9")  # type: ignore[arg-type]
    code = replace(kernel.code, mix=mix, widths=widths, loops=(loop,))
    findings = runner.diagnose(replace(profile, kernels=(replace(kernel, code=code),)), DIAGNOSTICS).findings
    assert findings[0].diagnostic == "narrow_access" and "8 bits per access" in findings[0].cause
    assert "integer_arithmetic" not in [finding.diagnostic for finding in findings]


def test_the_cpu_account_counts_every_loop_with_the_same_problem() -> None:
    strided = CpuLoop(strided=1, strided_bytes=4, share=0.5, where="kernel.cpp:8")
    cpu = CpuProfile(
        2,
        256,
        sampled=True,
        shares=CpuShares(native=1.0),
        loops=(strided, replace(strided, where="kernel.cpp:11", share=0.4), CpuLoop(bits=256, share=0.1)),
        dynamic=CpuRun(effective_threads=1.0),
    )
    profile = replace(PROFILES["c_softmax_cuda"], target="cpu", cpu=cpu, time_ms=10.0, floor_ms=1.0)
    account = make_account(profile)
    by_part = {part.part: part for part in account.parts}
    assert account.total_ms == pytest.approx(10.0) and by_part["floor"].ms == pytest.approx(1.0)
    assert by_part["idle_cores"].ms == pytest.approx(5.0)
    assert by_part["strided_access"].ms == pytest.approx(0.9 * 4.0)
    assert by_part["strided_access"].lines == ("kernel.cpp:8", "kernel.cpp:11")


def test_every_kind_of_part_has_words() -> None:
    assert set(PARTS) == set(get_args(PartKind))


@pytest.mark.parametrize("diagnostic", DIAGNOSTICS, ids=lambda diagnostic: diagnostic.name)
def test_a_diagnostic_claims_parts_of_its_target(diagnostic: Diagnostic) -> None:
    if diagnostic.claims != ALL_PARTS:
        assert not [part for part in diagnostic.claims if diagnostic.target not in PARTS[part].targets]


def test_the_plot_draws_the_account_above_the_roofline() -> None:
    text = profile_plot.plot_svg(runner.diagnose(PROFILES["d_barrier_stall"], DIAGNOSTICS), "a <title>")
    assert "a &lt;title&gt;" in text and "shared memory accesses" in text and "Roofline" in text
