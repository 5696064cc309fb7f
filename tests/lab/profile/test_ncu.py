"""ncu's output becomes counters of the right kernels; what is missing is reported. Pages as of version 2025.3."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelpro.diagnose import evidence
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.profile import collect, ncu
from kernelpro.lab.profile.collect import Collector
from kernelpro.lab.profile.profiler_sandbox import CommandResult, ProfilerSandbox
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import (
    Candidate,
    Ceilings,
    DeviceProperties,
    Kernel,
    KernelCode,
    Options,
    PowerReadings,
    Profile,
    ProfileRequest,
    Status,
    Timeline,
    Work,
)

GELU, ADD = "_Z11elementwiseILi4E4GeluEvPfT0_", "_Z11elementwiseILi4E3AddEvPfT0_"
NAMES = {GELU: "void elementwise<4, Gelu>(float*, Gelu)", ADD: "void elementwise<4, Add>(float*, Add)"}
MARKER = "_ZN2at4cuda55_GLOBAL__N__11spin_kernelEl"
COLUMNS = (
    ncu.TIME_METRIC,
    "dram__bytes_read.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "launch__registers_per_thread",
)
SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")


def page(*rows: tuple[str, float, float]) -> str:
    """The raw page of launches: name, nanoseconds, bytes read."""
    head = ("ID", "Kernel Name", "Block Size", "Grid Size", *COLUMNS, *SHARED, ncu.BREAKDOWN_METRICS[0])
    lines = [
        "==PROF== Connected to process 1",
        ",".join(f'"{name}"' for name in head),
        ",".join(['""'] * len(head)),
    ]
    for number, (name, time, read) in enumerate(rows):
        cells = (
            number,
            name,
            "(256, 1, 1)",
            "(512, 2, 1)",
            f"{time:,.0f}",
            f"{read:,.0f}",
            time / 1e3,
            40,
            16,
            1024,
            "sm__a,sm__b",
        )
        lines.append(",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines) + "\n"


def traced(*names: str) -> Profile:
    kernels = tuple(Kernel(name, 10.0, 1, 1 / len(names)) for name in names)
    work, ceilings = Work(1_000_000, 1_000_000, 1e6), Ceilings(4e12, 8e12, 50 << 20, {"fp32": 5e13})
    line = Timeline("cupti", 5, 30.0, 20.0, 0.0, 2.0)
    return Profile(
        "cuda", 0.02, 0.01, work, ceilings, DeviceProperties(), "fp32", kernels=kernels, timeline=line
    )


class RecordedRuns(ProfilerSandbox):
    """A sandbox whose commands print recorded output; it records the commands."""

    def __init__(self, *runs: str | tuple[int, str]):
        self._runs, self.commands = list(runs), list[list[list[str]]]()

    def run(self, commands: list[list[str]], *args: Any, **kwargs: Any) -> tuple[list[CommandResult], bytes]:
        self.commands.append(commands)
        run = self._runs.pop(0)
        if isinstance(run, str):
            return [CommandResult(0), CommandResult(0, run)], b""
        return [CommandResult(*run)], b""


class RecordedCollector(Collector):
    """A collector over recorded output of ncu."""

    def __init__(self, *runs: str | tuple[int, str]):
        super().__init__(
            cast(Bench, SimpleNamespace(target="cuda", options=Options())),
            Candidate("", "k.py"),
            lambda _: None,
        )
        self.sandbox = self.recorded = RecordedRuns(*runs)

    def _measure_power(self, participant: Participant) -> PowerReadings | None:
        return None  # no GPU whose power could be read


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_NCU", "/opt/ncu")


COUNTED = ProfileRequest(("smsp__issue_active.avg.pct_of_peak_sustained_active",))


def notes(profile: Profile) -> dict[str, str]:
    return {note.what: note.why for note in profile.skipped}


# --- one kernel each ---------------------------------------------------------------------------------------------------


def test_instances_of_a_template_keep_their_own_numbers() -> None:
    profile = traced(*NAMES.values())
    [counted] = ncu.parse_raw_page(
        page((MARKER, 1, 0), (GELU, 4000, 100), (ADD, 1000, 700), (GELU, 2000, 300)), 1
    )
    assert set(counted) == set(NAMES.values())
    gelu, add = collect.add_counters(profile, counted, {}).kernels
    assert (gelu.metrics["dram__bytes_read.sum"], add.metrics["dram__bytes_read.sum"]) == (200, 700)
    assert gelu.metrics[COLUMNS[2]] == pytest.approx((4 * 4000 + 2 * 2000) / 6000), (
        "shares are weighted by time"
    )


@pytest.mark.parametrize(
    "name", ["void elementwise<(int)4, Gelu>(float *, T2)", "void elementwise<4,Gelu>(float*,Gelu)"]
)
def test_demanglers_that_write_differently_mean_the_same(name: str) -> None:
    [counted] = ncu.parse_raw_page(page((MARKER, 1, 0), (GELU, 4000, 100), (ADD, 1000, 700)), 1)
    assert collect.add_counters(traced(name), counted, {}).kernels[0].metrics["dram__bytes_read.sum"] == 100


def test_a_name_without_arguments_means_all_instances() -> None:
    [counted] = ncu.parse_raw_page(page((MARKER, 1, 0), (GELU, 4000, 100), (ADD, 1000, 700)), 1)
    [kernel] = collect.add_counters(traced("elementwise"), counted, {}).kernels
    assert kernel.metrics["dram__bytes_read.sum"] == 400 and kernel.metrics[COLUMNS[2]] == pytest.approx(
        17e6 / 5e6
    )


def test_lines_belong_to_an_instance_too() -> None:
    block = '"File Path","/x/kernel.cu"\n"Function Name","{}"\n"Line No","Source","#","SASS","stall_long_sb"\n"{}","y = x;","","","9"\n'
    lines = ncu.parse_source_page(block.format(GELU, 7) + block.format(ADD, 8), {})
    profile = collect.add_counters(traced(*NAMES.values()), {}, lines)
    assert [kernel.lines[0].where for kernel in profile.kernels] == ["kernel.cu:7", "kernel.cu:8"]


# --- what is asked for -------------------------------------------------------------------------------------------------


def test_all_reasons_and_parts_come_without_naming_them() -> None:
    """Names of reasons and pipes differ from chip to chip; one that is not there would cost the whole run."""
    collecting, *_ = ncu.commands("ncu", ["target"], ("a__b.sum",), True, ())
    assert [collecting[i + 1] for i, word in enumerate(collecting) if word == "--section"] == [
        "SourceCounters",
        "WarpStateStats",
    ]
    metrics = collecting[collecting.index("--metrics") + 1].split(",")
    assert "a__b.sum" in metrics and set(ncu.BREAKDOWN_METRICS) < set(metrics)
    assert "--section" not in ncu.commands("ncu", ["target"], (), False, ())[0]


def test_a_metric_that_the_device_does_not_have_is_left_out() -> None:
    asked = ProfileRequest(("a__known.sum", "a__unknown.sum"))
    collector = RecordedCollector(
        (1, "==ERROR== Failed to find metric a__unknown.sum\n"), page((MARKER, 1, 0), (GELU, 4000, 100))
    )
    profile = collector.collect(asked, traced(NAMES[GELU]))
    first, second = (
        commands[0][commands[0].index("--metrics") + 1].split(",") for commands in collector.recorded.commands
    )
    assert set(first) - set(second) == {"a__unknown.sum"} and profile.kernels[0].metrics
    assert notes(profile)["counters"] == "ncu does not support a__unknown.sum here"


# --- beside a reference ------------------------------------------------------------------------------------------------


def test_a_reference_has_its_launch_and_its_time_under_ncu() -> None:
    told = page((MARKER, 1, 0), (GELU, 4000, 100), (MARKER, 1, 0), (ADD, 1000, 700))
    profile = RecordedCollector(told).collect(replace(COUNTED, references=("compile",)), traced(NAMES[GELU]))
    [beside] = profile.references["compile"].kernels
    assert (beside.grid, beside.block, beside.registers) == ((512, 2, 1), (256, 1, 1), 40)
    assert (beside.static_shared, beside.dynamic_shared) == (16, 1024)
    text = evidence.write(profile)
    assert (
        "| time in a call, us | 10.0 |  |" in text
        and "| time of a launch under ncu, us | 4.0 | 1.0 |" in text
    )
    assert "| grid x block |  | 512x2x1 x 256x1x1 |" in text


def test_a_candidate_of_many_launches_leaves_room_or_it_is_said() -> None:
    asked = replace(COUNTED, references=("compile",))
    crowd = page((MARKER, 1, 0), *[(GELU, 10, 1)] * (2 * ncu.MAX_LAUNCHES - 1))
    collector = RecordedCollector(crowd)
    told = notes(collector.collect(asked, traced(NAMES[GELU])))
    command = collector.recorded.commands[0][0]
    assert command[command.index("--launch-count") + 1] == str(2 * ncu.MAX_LAUNCHES)
    assert "stops after 80 launches" in told["ncu"] and "used up" in told["compare compile"]


def test_a_reference_that_takes_ncu_down_is_left_out() -> None:
    collector = RecordedCollector((124, "timed out"), page((MARKER, 1, 0), (GELU, 4000, 100)))
    profile = collector.collect(replace(COUNTED, references=("compile",)), traced(NAMES[GELU]))
    assert profile.kernels[0].metrics and not profile.references and "timed out" in notes(profile)["compare"]


# --- without a timeline ------------------------------------------------------------------------------------------------


def test_without_a_timeline_kernels_are_those_that_were_counted() -> None:
    code = KernelCode(mix={"fma32": 1}, signature=NAMES[GELU])
    known = replace(traced(NAMES[GELU]), timeline=None)
    known = replace(known, kernels=(replace(known.kernels[0], code=code),))
    profile = RecordedCollector(page((MARKER, 1, 0), (GELU, 3000, 100), (ADD, 1000, 700))).collect(
        COUNTED, known
    )
    gelu, add = profile.kernels
    assert (gelu.name, gelu.microseconds, gelu.share, gelu.code) == (NAMES[GELU], 3.0, 0.75, code)
    assert gelu.metrics and add.share == 0.25 and gelu.grid == (512, 2, 1)
    assert "under ncu" in notes(profile)["times of the kernels"]


class Untraceable:
    """A candidate's process that cannot be traced."""

    process = SimpleNamespace(has_ended=lambda: False)

    def may_compile(self, seconds: float) -> nullcontext[None]:
        return nullcontext()

    def request(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        if request["op"] == "trace":
            raise CandidateRejected(Status.CRASHED, "CUPTI is not here")
        facts = [
            {"signature": name, "symbol": symbol, "registers": 40, "mix": {"fma32": 1}}
            for symbol, name in NAMES.items()
        ]
        return {"kernels": {"elementwise": facts}}


def test_without_a_timeline_the_machine_code_is_not_lost() -> None:
    collector = RecordedCollector()
    collector._bench.options = Options()
    known = replace(traced(), timeline=None)
    profile = collector._profile_gpu(cast(Participant, Untraceable()), known, ProfileRequest())
    assert [kernel.name for kernel in profile.kernels] == list(NAMES.values()) and profile.timeline is None
    assert all(
        kernel.code and kernel.code.mix == {"fma32": 1} and kernel.share == 0.5 for kernel in profile.kernels
    )
    told = {note.what: note.why for note in collector._skipped}
    assert told["timeline"] == "CUPTI is not here" and "equal shares" in told["times of the kernels"]
