"""The words: guidance and evidence of real profiles against golden files, and the picture of the roofline.

After a change of wording, read the difference and renew the files:
PYTHONPATH=src python tests/diagnose/test_guidance.py
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_profiles import PROFILES, bare, load

from kernelpro.diagnose import evidence, guidance, roofline, runner
from kernelpro.diagnose.counters import WARP_CYCLES, stall_metric
from kernelpro.diagnose.diagnostics import registry
from kernelpro.records import (
    CompilerReport,
    Diagnosis,
    Evidence,
    KernelCode,
    Line,
    PowerReadings,
    Profile,
    Skipped,
)
from kernelpro.report.roofline_plot import plot_svg

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in PROFILES.glob("*.json"))
DIAGNOSTICS = list(registry().values())


def diagnosed(profile: Profile) -> Diagnosis:
    return runner.diagnose(profile, DIAGNOSTICS)


def whole() -> Profile:
    """A profile with every section of the evidence: hot lines, a baseline, a configuration, remarks, and what was not measured."""
    profile = load("spills")
    lines = (
        Line(
            "kernel.cu:17",
            "keep[i] = x[i];",
            0.61,
            {"long_scoreboard": 0.8, "lg_throttle": 0.15},
            ("STL [R1], R4", "LDG.E R4"),
        ),
        Line("", "", 0.05),
    )
    return replace(
        profile,
        kernels=(replace(profile.kernels[0], lines=lines),),
        references={"eager": load("softmax_cuda")},
        compiler=CompilerReport(
            ("registers spilled",), configuration={"rmsnorm_kernel": "BLOCK: 128, num_warps: 4"}
        ),
        skipped=(Skipped("power", "no NVML here", "install nvidia-ml-py"),),
    )


def texts() -> dict[str, str]:
    """What the golden files hold, by name."""
    expected = {f"guidance_{name}.txt": guidance.write(diagnosed(load(name))) + "\n" for name in NAMES}
    expected["guidance_spills_without_counters.txt"] = guidance.write(diagnosed(bare(load("spills")))) + "\n"
    expected["evidence_launch_overhead.md"] = evidence.write(load("launch_overhead"))
    expected["evidence_whole.md"] = evidence.write(whole())
    return expected


@pytest.mark.parametrize("name", texts())
def test_the_wording_is_the_one_that_was_read_and_found_good(name: str) -> None:
    assert texts()[name] == (GOLDEN / name).read_text(encoding="utf-8")


def test_there_is_no_golden_file_without_its_text() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(texts())


# --- guidance --------------------------------------------------------------------------------------------------------


def test_at_most_so_many_findings_are_told_and_causes_first() -> None:
    diagnosis = diagnosed(load("spills"))
    assert len(diagnosis.findings) >= 3
    first, all_of_them = guidance.write(diagnosis, max_directives=1), guidance.write(diagnosis)
    assert "1. [high] spills" in first and "Symptoms" not in first and len(first) < len(all_of_them)
    assert "- warp_stall in rmsnorm_kernel, caused by spills: " in all_of_them


def test_a_diagnostic_speaks_once() -> None:
    diagnosis = diagnosed(load("narrow_access"))
    twice = replace(diagnosis, findings=(*diagnosis.findings, replace(diagnosis.findings[0], kernel="other")))
    assert guidance.write(twice) == guidance.write(diagnosis)


@pytest.mark.parametrize(
    ("reached", "skipped", "words"),
    [
        (
            0.9,
            (Skipped("ncu", "it is forbidden"),),
            "No findings: the call is close to its floor. Tune parameters",
        ),
        (0.02, (), "No diagnostic matched: none of them covers the cause."),
        (0.02, (Skipped("ncu", "it is forbidden"),), "No diagnostic matched. Some did not run: ncu."),
        (
            0.02,
            tuple(Skipped(f"diagnostic{i}", "the profile lacks a timeline") for i in range(8)),
            "diagnostic4, diagnostic5 and 2 more.",
        ),
        (
            5.5,
            (),
            "below the floor of 0.1268 ms: the floor is wrong here and does not cap the gains.",
        ),
    ],
)
def test_nothing_found_is_said_by_how_far_it_is_and_by_what_was_looked_at(
    reached: float, skipped: tuple[Skipped, ...], words: str
) -> None:
    diagnosis = diagnosed(load("softmax_cuda"))
    place = replace(diagnosis.roofline, of_floor=reached)
    text = guidance.write(replace(diagnosis, findings=(), roofline=place, skipped=skipped))
    assert words in text and ("No findings" in text) == (reached == 0.9)


def test_there_are_five_directives_in_all_and_one_for_energy_where_there_is_one() -> None:
    diagnosis = diagnosed(load("softmax_cuda"))
    template = diagnosis.findings[0]

    def directives(speed: int, energy: int) -> list[str]:
        fast = [replace(template, diagnostic=f"fast{i}") for i in range(speed)]
        lean = [replace(template, diagnostic=f"lean{i}", objective="energy") for i in range(energy)]
        lines = guidance.write(replace(diagnosis, findings=(*fast, *lean), energy=True)).splitlines()
        return [
            line.split("] ")[1].split(" in ")[0]
            for line in lines
            if line[:2] in {f"{n}." for n in range(1, 10)}
        ]

    assert directives(6, 4) == ["fast0", "fast1", "fast2", "fast3", "lean0"]
    assert directives(3, 4) == ["fast0", "fast1", "fast2", "lean0", "lean1"]
    assert directives(1, 4) == ["fast0", "lean0", "lean1", "lean2"]
    assert directives(6, 0) == ["fast0", "fast1", "fast2", "fast3", "fast4"]


def test_energy_that_was_not_looked_for_is_not_called_well_spent() -> None:
    blind = replace(
        diagnosed(load("softmax_cuda")),
        energy=True,
        skipped=(Skipped(runner.ENERGY, "there are none here"),),
    )
    assert "no findings (energy diagnostics: there are none here)." in guidance.write(blind)
    assert "Energy is an objective too: no findings." in guidance.write(replace(blind, skipped=()))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Evidence("sectors a request", 32.0, 17), "sectors a request 32 (vs 17)"),
        (Evidence("waiting", 36.0, 25.0, "%"), "waiting 36% (vs 25%)"),
        (Evidence("spilled", 1640.0, 0.0, "bytes"), "spilled 1640 bytes"),
        (Evidence("moved", 833_515_264.0, 276_827_216.0, "B"), "moved 834 MB (vs 277 MB)"),
        (Evidence("moved", 1_438_768_384.0, None, "bytes"), "moved 1.44 GB"),
        (Evidence("operations", 6.87e13, None, "FLOP"), "operations 68.7 TFLOP"),
        (Evidence("requests", 2_097_152.0), "requests 2 097 152"),
        (Evidence("time", 1525.4, None, "us"), "time 1525 us"),
        (Evidence("share", 0.0312, None, "x"), "share 0.0312x"),
    ],
)
def test_numbers_read_as_a_person_writes_them(item: Evidence, words: str) -> None:
    assert guidance.evidence(item) == words


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [40, 150, 400, 2500])
def test_the_page_keeps_to_its_budget_and_loses_its_end_first(tokens: int) -> None:
    page, entire = evidence.write(whole(), tokens), evidence.write(whole(), 100_000)
    assert len(page) <= tokens * evidence.CHARACTERS_PER_TOKEN
    assert page.startswith("## Time of a call") and entire.startswith(page.rstrip("\n"))


def test_every_section_is_there_where_its_facts_are() -> None:
    page = evidence.write(whole())
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    starts = (
        "Time",
        "Autotuned",
        "Kernels, beside",
        "Warp stalls",
        "Hottest lines",
        "Under sustained",
        "Compiler warnings",
        "Not measured",
    )
    assert len(titles) == len(starts) and all(map(str.startswith, titles, starts))
    assert (
        "eager: softmax_kernel" in page
        and "STL [R1], R4" in page
        and "no NVML here (install nvidia-ml-py)" in page
    )


def test_a_page_without_facts_is_short() -> None:
    page = evidence.write(replace(bare(load("softmax_cuda")), kernels=(), timeline=None, power=None))
    assert page.splitlines()[0] == "## Time of a call" and len(page.splitlines()) == 2


def first(profile: Profile, **changes: float) -> Profile:
    """The profile with other counters of its first kernel."""
    kernel = profile.kernels[0]
    return replace(profile, kernels=(replace(kernel, metrics=kernel.metrics | changes), *profile.kernels[1:]))


def test_every_reason_to_wait_is_told_and_what_was_not_counted() -> None:
    profile = load("softmax_cuda")
    kernel = replace(profile.kernels[0], metrics={WARP_CYCLES: 10.0})
    profile = replace(profile, kernels=(kernel,))
    known = {
        "membar": 5.6,
        "gmma": 2.0,
        "wait": 0.5,
        "imc_miss": 0.1,
        "new_reason": 0.4,
        "membar_not_issued": 5.0,
    }
    page = evidence.write(
        first(profile, **{stall_metric(reason): cycles for reason, cycles in known.items()})
    )
    section = page.split("(share of warp cycles)\n")[1].split("\n\n")[0].splitlines()
    assert [line.split(":")[0].split() for line in section[:4]] == [
        ["56%", "membar"],
        ["20%", "gmma"],
        ["5%", "wait"],
        ["4%", "new_reason"],
    ]
    assert section[4:] == ["less: imc_miss 1%", " 14%  reasons that were not counted"]


def test_pipes_and_parts_are_told_by_whatever_counter_the_device_has() -> None:
    part = "{}.avg.pct_of_peak_sustained_elapsed".format
    parts = {
        "sm__pipe_fma_cycles_active": 31.0,
        "sm__inst_executed_pipe_lsu": 12.0,
        "lts__t_sectors": 44.0,
        "lts__quiet": 1.0,
    }
    page = evidence.write(first(load("softmax_cuda"), **{part(name): value for name, value in parts.items()}))
    assert "| FMA pipe, % of peak | 31 |" in page and "| load/store unit (LSU), % of peak | 12 |" in page
    assert (
        "SM throughput breakdown (% of peak): sm__pipe_fma_cycles_active 31, sm__inst_executed_pipe_lsu 12\n"
        in page
    )
    assert "memory throughput breakdown (% of peak): lts__t_sectors 44" in page and "lts__quiet" not in page


@pytest.mark.parametrize(
    ("power", "words"),
    [
        ({"watts": 300.0}, "300 W"),
        ({"watts": 300.0, "max_sm_mhz": 1980.0}, "300 W"),
        ({"watts": 300.0, "capped": 0.0}, "300 W; not power-limited"),
        ({"watts": 690.0, "limit_watts": 700.0, "capped": 0.9}, "690 of 700 W; power-limited"),
    ],
)
def test_of_power_only_what_was_read_is_said(power: dict[str, float], words: str) -> None:
    assert f"## Under sustained load\n{words}\n" in evidence.write(
        replace(load("softmax_cuda"), power=PowerReadings(**power))
    )


def test_what_the_compiler_alone_reported_is_shown_and_no_diagnostic_takes_it_for_machine_code() -> None:
    profile = load("spills")
    report = KernelCode(registers=32, spill_stores=760, spill_loads=880, warnings=("it is slow",))
    profile = replace(profile, kernels=(replace(profile.kernels[0], code=report),))
    page = evidence.write(profile)
    assert "| spilled bytes (stores, loads) | 760, 880 |" in page and "it is slow" in page
    why = {note.what: note.why for note in diagnosed(profile).skipped}
    assert why["spills"] == "the profile lacks machine code of this kernel"


# --- the picture -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_dot_lies_inside_the_picture_and_below_the_roof(name: str) -> None:
    root = ElementTree.fromstring(plot_svg(roofline.position(load(name)), f"{name} <&> more"))
    space = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    attainable, dot = root.findall(f"{space}circle")
    for circle in (attainable, dot):
        assert 0 < float(circle.attrib["cx"]) < width and 0 < float(circle.attrib["cy"]) < height
    assert dot.attrib["cx"] == attainable.attrib["cx"]
    assert float(dot.attrib["cy"]) >= float(attainable.attrib["cy"]), "lower on the page is slower"
    assert any(text.text == f"{name} <&> more" for text in root.iter(f"{space}text"))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for file, text in texts().items():
        (GOLDEN / file).write_text(text, encoding="utf-8")
