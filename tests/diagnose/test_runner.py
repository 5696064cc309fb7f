"""Stages 1 and 2 over real profiles: the class, which diagnostics run, symptoms, and the ranking."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_profiles import bare, load

from kernelpro.diagnose import Diagnostic, DiagnosticContext, Match, diagnostics, roofline, runner
from kernelpro.diagnose.account import ACCOUNT_METRICS
from kernelpro.diagnose.claims import UNEXPLAINED
from kernelpro.diagnose.counters import DRAM_THROUGHPUT, MEMORY_THROUGHPUT, SM_THROUGHPUT
from kernelpro.diagnose.diagnostic import ANY, REPLACE
from kernelpro.diagnose.diagnostics import registry
from kernelpro.diagnose.kernel_names import display_name, plain_name
from kernelpro.diagnose.track_record import TrackRecord
from kernelpro.records import Bound, Evidence, Kernel, Profile

DIAGNOSTICS = list(registry().values())

# --- stage 1: the class ----------------------------------------------------------------------------------------------


def working(profile: Profile, **work: float) -> Profile:
    return replace(profile, work=replace(profile.work, **work))


def counted(profile: Profile, compute: float, memory: float) -> Profile:
    first = replace(
        profile.kernels[0],
        metrics=profile.kernels[0].metrics | {SM_THROUGHPUT: compute, MEMORY_THROUGHPUT: memory},
    )
    return replace(profile, kernels=(first, *profile.kernels[1:]))


SOFTMAX = load("softmax_cuda")
CLASSES = {
    "memory": (SOFTMAX, Bound.MEMORY, "high", "counters agree"),
    "compute": (load("linear_gelu_cuda"), Bound.COMPUTE, "high", "counters agree"),
    "launch": (load("launch_overhead"), Bound.LAUNCH, "high", "idle between kernels"),
    "latency": (working(SOFTMAX, read_bytes=1e6, written_bytes=1e6), Bound.LATENCY, "low", "too little work"),
    "mixed": (working(SOFTMAX, vector_flops=6.5e9), Bound.MIXED, "high", "counters agree"),
    "against the counters": (
        load("missing_reuse"),
        Bound.MEMORY,
        "low",
        "counters indicate compute (compute 87%, memory 44% of peak)",
    ),
    "a unit that idles": (load("narrow_access"), Bound.MEMORY, "low", "counters indicate latency"),
    "both units busy": (counted(SOFTMAX, 80.0, 82.0), Bound.MEMORY, "high", "counters agree"),
    "without counters": (bare(SOFTMAX), Bound.MEMORY, "medium", "no counters were collected"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_the_tasks_own_bound_decides_and_counters_give_confidence(case: str) -> None:
    profile, bound, confidence, words = CLASSES[case]
    found = roofline.classify(profile)
    assert (found.bound, found.confidence) == (bound, confidence) and words in found.why


def test_what_the_tracer_costs_does_not_make_a_call_launch_bound() -> None:
    softmax = load("softmax_cuda")
    assert softmax.timeline
    slow_host = replace(softmax.timeline, call_us=3 * softmax.timeline.call_us)
    assert roofline.classify(replace(softmax, timeline=slow_host)).bound is Bound.MEMORY


def test_the_position_lies_below_its_roof() -> None:
    place = roofline.position(SOFTMAX)
    assert place.of_floor == pytest.approx(SOFTMAX.floor_ms / SOFTMAX.time_ms)
    assert place.flops_per_second <= place.intensity * place.roof_bandwidth < place.roof_flops
    assert place.least_ms.memory == pytest.approx(SOFTMAX.floor_ms, rel=0.01)


# --- selection -------------------------------------------------------------------------------------------------------


def test_diagnostics_that_need_counters_run_where_the_class_asks_for_them() -> None:
    selected = {bound: {d.name for d in runner.select(DIAGNOSTICS, bound, "cuda")} for bound in Bound}
    assert "bank_conflicts" in selected[Bound.MEMORY] and "bank_conflicts" not in selected[Bound.LAUNCH]
    assert (
        "tensor_cores_idle" in selected[Bound.COMPUTE] and "tensor_cores_idle" not in selected[Bound.MEMORY]
    )
    assert all("launch_overhead" in names for names in selected.values()), "what is free runs always"
    assert not any(name.startswith("cpu_") for name in selected[Bound.MEMORY])


def test_the_counters_of_the_account_and_of_the_selected_diagnostics_are_asked_for() -> None:
    only_compute = claims("compute", 2.0, metrics=("special",), bounds=frozenset({Bound.COMPUTE}))
    memory, compute = (
        runner.request_for([*DIAGNOSTICS, only_compute], SOFTMAX, bound)
        for bound in (Bound.MEMORY, Bound.COMPUTE)
    )
    everything = runner.request_all([*DIAGNOSTICS, only_compute], "cuda")
    assert (
        "special" in compute.metrics and "special" not in memory.metrics and "special" in everything.metrics
    )
    assert set(memory.metrics) | set(compute.metrics) <= set(everything.metrics) and memory.sample_lines
    assert set(ACCOUNT_METRICS) <= set(memory.metrics)
    assert runner.request_for(DIAGNOSTICS, SOFTMAX, Bound.LAUNCH).metrics == (), "an idle device needs none"


def test_a_diagnostic_without_its_counters_is_listed_as_skipped() -> None:
    skipped = {item.what: item.why for item in runner.diagnose(bare(SOFTMAX), DIAGNOSTICS).skipped}
    assert "counter" in skipped["divergence"] and len(skipped) == len(set(skipped))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("timeline", "the profile lacks a timeline"),
        ("cpu", "the profile lacks a profile of the CPU"),
        ("kernel", "the profile lacks a kernel"),
    ],
)
def test_what_is_missing_is_named(missing: str, words: str) -> None:
    curious = Diagnostic(
        "curious", "system", "cuda", lambda context: getattr(context, missing), "t", "r", "e"
    )
    [note] = runner.diagnose(replace(SOFTMAX, timeline=None, skipped=()), [curious]).skipped
    assert (note.what, note.why) == ("curious", words)


def test_a_diagnostic_that_fails_costs_its_own_word_alone() -> None:
    def fails(context: DiagnosticContext) -> Match:
        raise ValueError("no such thing\nas this")

    returns = Diagnostic("returns", "system", "cuda", lambda context: "a text", "t", "r", "e")  # type: ignore[arg-type,return-value]
    several = [Diagnostic("raises", "system", "cuda", fails, "t", "r", "e"), returns, claims("honest", 2.0)]
    diagnosis = runner.diagnose(replace(SOFTMAX, floor_ms=0.001), several)
    assert [finding.diagnostic for finding in diagnosis.findings] == ["honest", UNEXPLAINED]
    notes = {item.what: item.why for item in diagnosis.skipped}
    assert notes["raises"] == "it failed: ValueError: no such thing" and "AttributeError" in notes["returns"]


def test_diagnostics_that_the_class_does_not_ask_are_named_in_one_line_and_can_be_asked() -> None:
    counting = [
        claims(name, 4.0, metrics=(DRAM_THROUGHPUT,), bounds=frozenset({Bound.COMPUTE}))
        for name in ("one", "two")
    ]
    [note] = runner.diagnose(replace(SOFTMAX, skipped=()), counting).skipped
    assert note.why == "not run in class memory: one, two" and "--all-counters" in note.enable
    far = replace(SOFTMAX, skipped=(), floor_ms=0.001)
    complete = runner.diagnose(far, counting, run_all=True)
    assert {finding.diagnostic for finding in complete.findings} == {"one", "two"} and not complete.skipped


def test_a_launch_bound_candidate_is_not_asked_for_counters_and_says_so() -> None:
    skipped = runner.diagnose(bare(load("launch_overhead")), DIAGNOSTICS).skipped
    [note] = [item for item in skipped if "not run in class launch" in item.why]
    assert "bank_conflicts" in note.why and not any(item.what == "bank_conflicts" for item in skipped)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (bare(SOFTMAX), "did not run: counters were not collected"),
        (
            bare(load("launch_overhead")),
            "did not run: counters are not collected in class launch",
        ),
        (replace(bare(SOFTMAX), target="cpu"), "there are none for this target"),
        (counted(bare(SOFTMAX), 30.0, 80.0), "did not run: the profile lacks their data"),
    ],
)
def test_where_diagnostics_could_not_look_for_energy_that_is_said(profile: Profile, words: str) -> None:
    notes = [
        item.why
        for item in runner.diagnose(profile, DIAGNOSTICS, energy=True).skipped
        if item.what == runner.ENERGY
    ]
    assert len(notes) == 1 and words in notes[0]


def test_a_floor_that_a_candidate_has_undercut_caps_nothing() -> None:
    undercut = replace(SOFTMAX, floor_ms=5 * SOFTMAX.time_ms)
    [finding] = runner.diagnose(undercut, [claims("some", 2.0, level="system")]).findings
    assert finding.gain.factor == pytest.approx(2.0) and "floor" not in finding.gain.basis
    assert not runner.diagnose(
        replace(SOFTMAX, floor_ms=1.02 * SOFTMAX.time_ms), [claims("some", 2.0)]
    ).findings


def test_kernels_that_do_not_matter_are_not_looked_at() -> None:
    profile = load("hot_spot")
    small = next(kernel.name for kernel in profile.kernels if kernel.share < 0.05)
    assert small not in {finding.kernel for finding in runner.diagnose(profile, DIAGNOSTICS).findings}


@pytest.mark.parametrize(
    "path", sorted(Path(diagnostics.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_a_diagnostic_stands_alone(path: Path) -> None:
    """What diagnostics share lives beside them, so that each can be replaced or left out."""
    assert "kernelpro.diagnose.diagnostics." not in path.read_text(encoding="utf-8")


# --- symptoms and ranks ----------------------------------------------------------------------------------------------


def claims(name: str, factor: float, **changes: Any) -> Diagnostic:
    """A diagnostic that always matches, with a gain of `factor`."""
    match = Match(
        (Evidence("a", 1.0),),
        "because",
        1 - 1 / factor,
        "so",
        advice=("do this", "or that"),
        kernel=changes.pop("kernel_name", ""),
    )
    level = changes.pop("level", "kernel")
    return Diagnostic(name, level, "cuda", lambda context: match, "t", "r", "e", **changes)


def ranked(
    several: list[Diagnostic], profile: Profile = SOFTMAX, record: TrackRecord | None = None
) -> list[tuple[str, str]]:
    far = replace(profile, floor_ms=profile.time_ms / 100)
    return [
        (finding.diagnostic, finding.explained_by)
        for finding in runner.diagnose(far, several, record).findings
        if finding.diagnostic != UNEXPLAINED
    ]


def test_causes_come_by_gain_and_symptoms_after_all_causes() -> None:
    several = [
        claims("small", 1.2),
        claims("symptom", 5.0, symptom_of=("small", "absent")),
        claims("large", 2.0),
    ]
    assert ranked(several) == [("large", ""), ("small", ""), ("symptom", "small")]


def test_a_symptom_is_explained_by_a_root_rather_than_by_another_symptom() -> None:
    several = [
        claims("root", 2.0),
        claims("between", 4.0, symptom_of=("root",)),
        claims("last", 3.0, symptom_of=("between", "root")),
        claims("pointer", 1.5, level="system", kernel_name="softmax_kernel", symptom_of=(ANY,)),
    ]
    assert ranked(several) == [("root", ""), ("between", "root"), ("last", "root"), ("pointer", "root")]


def test_two_that_anything_explains_do_not_explain_each_other() -> None:
    assert ranked([claims("a", 1.5, symptom_of=(ANY,)), claims("b", 1.4, symptom_of=(ANY,))]) == [
        ("a", ""),
        ("b", ""),
    ]


def test_what_is_worth_less_than_noise_is_not_mentioned() -> None:
    assert ranked([claims("noise", 1.02), claims("signal", 1.04)]) == [("signal", "")]


def test_what_a_library_does_inside_ranks_after_what_the_author_can_change() -> None:
    theirs = replace(SOFTMAX, kernels=(replace(SOFTMAX.kernels[0], authored=False),))
    several = [claims("inside", 3.0), claims("around", 1.5, level="system")]
    assert ranked(several) == [("inside", ""), ("around", "")]
    assert ranked(several, theirs) == [("around", ""), ("inside", "")]
    finding = runner.diagnose(replace(theirs, floor_ms=0.001), several).findings[1]
    assert finding.advice == (REPLACE, "in your kernel, do this")


def test_a_library_kernels_hot_spot_comes_before_its_inner_defects() -> None:
    findings = runner.diagnose(load("hot_spot"), DIAGNOSTICS).findings
    assert [finding.diagnostic for finding in findings][:2] == ["hot_spot", "excess_traffic"]
    assert (
        findings[0].kernel == findings[1].kernel == "cunn_SoftMaxForward"
        and "replace" in findings[0].advice[0]
    )


def test_the_order_of_diagnostics_does_not_matter() -> None:
    profile = load("spills")
    assert (
        runner.diagnose(profile, DIAGNOSTICS).findings == runner.diagnose(profile, DIAGNOSTICS[::-1]).findings
    )


# --- track record ----------------------------------------------------------------------------------------------------


def test_a_diagnostic_that_promises_too_much_sinks() -> None:
    several, record = [claims("boaster", 2.0), claims("honest", 1.8)], TrackRecord()
    assert ranked(several, record=record)[0] == ("boaster", "")
    for _ in range(5):
        record.add("boaster", predicted=2.0, achieved=1.0)
        record.add("honest", predicted=1.8, achieved=1.8)
    assert ranked(several, record=record)[0] == ("honest", "")


def test_few_trials_change_little() -> None:
    record = TrackRecord()
    record.add("some", predicted=2.0, achieved=1.0)
    assert record.trust("some") == pytest.approx(5 / 6) and record.trust("unknown") == 1.0
    record.add("some", predicted=2.0, achieved=1e9)
    assert record.trust("some") == pytest.approx((5 + 0 + 3) / 7), (
        "one lucky trial counts three times at most"
    )
    record.add("some", predicted=1.001, achieved=5.0)
    assert len(record.trials["some"]) == 2, "a promise of nothing cannot be kept or broken"


def test_trials_survive_a_restart_and_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.jsonl"
    record = TrackRecord.load(path)
    assert record.trials == {}
    record.add("some", predicted=2.0, achieved=4.0)
    record.add("some", predicted=2.0, achieved=0.5)
    with path.open("a", encoding="utf-8") as file:
        file.write(
            '{"diagnostic": "some", "predicted": 2.0}\nnot json\n[1]\n'
            + json.dumps({"diagnostic": "other", "predicted": 4, "achieved": 2})
        )
    with path.open("ab") as binary:
        binary.write(b'\n{"diagnostic": "\xff\xfe"}\n\x00\xc3')
    again = TrackRecord.load(path)
    assert again.trials == {"some": [2.0, -1.0], "other": [0.5]}
    assert again.discounted_gain("other", 4.0) == pytest.approx(4 ** (5.5 / 6))


def test_the_default_place_is_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    TrackRecord.load().add("some", 2.0, 2.0)
    assert (tmp_path / "kernelpro" / "track-record.jsonl").read_text().count("\n") == 1


# --- names -----------------------------------------------------------------------------------------------------------

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, char*)"
TANH = "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda(at::Base&)::{lambda()#2}>(int, char*)"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("softmax_kernel", "softmax_kernel"),
        ("softmax_kernel(float4 const*, float4*)", "softmax_kernel"),
        ("void (anonymous namespace)::row<4, float>(float*)", "row"),
        (FILL, "vectorized_elementwise_kernel"),
        ("sm90_xmma_gemm_f32f32_tf32f32", "sm90_xmma_gemm_f32f32_tf32f32"),
    ],
)
def test_kernels_are_called_as_people_call_them(name: str, short: str) -> None:
    assert plain_name(name) == short


def test_names_stay_apart() -> None:
    kernels = tuple(Kernel(name, 1.0, 1, 0.3) for name in (FILL, TANH, "copy(int)"))
    names = [display_name(kernel, kernels) for kernel in kernels]
    assert names[0] == "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul> >"
    assert (
        names[1].startswith("vectorized_elementwise_kernel<4, tanh_kernel_cuda")
        and names[2] == "copy"
        and len(set(names)) == 3
    )
    twins = tuple(Kernel(name, 1.0, 1, 0.5) for name in ("row(int)", "row(float)"))
    assert [display_name(kernel, twins) for kernel in twins] == ["row(int)", "row(float)"]


def test_a_finding_speaks_of_the_plain_name() -> None:
    at = DiagnosticContext(SOFTMAX, Bound.MEMORY, SOFTMAX.kernels[0])
    assert "(" in at.kernel.name
    assert at.to_finding(claims("any", 2.0), Match((), "c", 0.5, "h")).kernel == "softmax_kernel"
