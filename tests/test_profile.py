"""`kernelpro profile` and `kernelpro diagnostics` as a user runs them. GPU tests are marked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import in_process
import pytest
from defects.building import about
from in_process import WarmCommand

from kernelpro.cli import diagnostics
from kernelpro.diagnose import runner
from kernelpro.diagnose.counters import WARP_CYCLES, stall_metric
from kernelpro.diagnose.diagnostics import registry
from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.languages import cute
from kernelpro.lab.profile import ncu
from kernelpro.records import (
    Candidate,
    Ceilings,
    DeviceProperties,
    Job,
    Kernel,
    KernelCode,
    Options,
    Profile,
    Task,
    Work,
)

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
BAD, DEFECTS = HERE / "bad", HERE / "defects"
CPU = (str(BAD / "task.py"), str(BAD / "good.py"), "--target", "cpu")

SLOW = """
import time, torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return torch.tanh(2 * x + 1)
"""
OWN_DIAGNOSTIC = """
from kernelpro.diagnose import Diagnostic, Match
from kernelpro.records import Evidence

def analyze(context):
    threads = len(context.cpu.dynamic.threads)
    return Match((Evidence("threads", threads, 1),), "it is {name}", {saved}, "always so much")

DIAGNOSTIC = Diagnostic("{name}", "system", "cpu", analyze, "always", "itself", "a fixed share", ("do it",))
"""


def kernelpro(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelpro", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | changes, timeout=300)


def refused(*arguments: object) -> str:
    """What a call that fails says: one line, exit code 2."""
    done = in_process.kernelpro(*arguments)
    assert done.returncode == 2 and not done.stdout, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plot") / "roofline.svg"


@pytest.fixture(scope="module")
def answer(picture: Path, warm_kernelpro: WarmCommand) -> dict[str, Any]:
    task, candidate = DEFECTS / "cpu_tasks" / "silu.py", DEFECTS / "cpu" / "d_math_calls.py"
    options = ("--target", "cpu", "--json", "--raw", "--plot", picture)
    done = warm_kernelpro("profile", task, candidate, *options)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_json_has_every_key(answer: dict[str, Any]) -> None:
    assert answer["class"] in ("compute", "memory", "latency", "launch", "mixed")
    assert answer["confidence"] in ("high", "medium", "low")
    assert answer["roofline"]["time_ms"] > answer["roofline"]["floor_ms"] > 0
    assert answer["why"] and answer["guidance"] and answer["seconds"]["total"] > 0
    finding = next(one for one in answer["findings"] if one["diagnostic"] == "cpu_math_calls")
    assert finding["level"] == "instruction" and finding["severity"] in ("high", "medium", "low")
    assert finding["cause"] and finding["advice"] and finding["where"].startswith("kernel.cpp:")
    assert finding["gain"]["factor"] > 1 and finding["gain"]["basis"]
    assert all({"metric", "value", "threshold", "unit"} <= set(one) for one in finding["evidence"])
    assert all(one["what"] and one["why"] for one in answer["skipped"])


def _examples(target: str) -> list[Any]:
    """The candidates in the examples that are right; all but one are long tests."""
    wrong = ("cpp_drops_bias", "cpp_skips_rows")
    folders = sorted(path.parent for path in (HERE.parent / "examples" / target).glob("*/task.py"))
    paths = [
        path
        for folder in folders
        for path in sorted(folder.glob("*.py"))
        if path.stem not in ("task", *wrong)
    ]
    return [
        pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[pytest.mark.long] * (number > 0))
        for number, path in enumerate(paths)
    ]


def _account_error(path: Path, target: str, warm_kernelpro: WarmCommand) -> float:
    done = warm_kernelpro("profile", path.parent / "task.py", path, "--target", target, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return abs(sum(part["ms"] for part in answer["account"]) / answer["roofline"]["time_ms"] - 1)


@pytest.mark.parametrize("path", _examples("cpu"))
def test_the_account_of_every_example_adds_up_on_the_cpu(path: Path, warm_kernelpro: WarmCommand) -> None:
    assert _account_error(path, "cpu", warm_kernelpro) < 0.03


@pytest.mark.gpu
@pytest.mark.parametrize("path", _examples("gpu"))
def test_the_account_of_every_example_adds_up_on_the_gpu(path: Path, warm_kernelpro: WarmCommand) -> None:
    if "runtime.cute" in path.read_text(encoding="utf-8") and cute.cutlass_root() is None:
        pytest.skip("no CUTLASS headers")
    assert _account_error(path, "cuda", warm_kernelpro) < 0.03


def test_raw_json_is_the_profile_itself(answer: dict[str, Any]) -> None:
    profile = Profile.from_json(answer["profile"])
    assert profile.target == "cpu" and profile.cpu and profile.cpu.loops and profile.source
    again = runner.diagnose(profile, registry().values())
    assert [finding.diagnostic for finding in again.findings] == [
        finding["diagnostic"] for finding in answer["findings"]
    ]


def test_the_picture_is_svg(answer: dict[str, Any], picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any("d_math_calls" in (text.text or "") for text in root.iter("{http://www.w3.org/2000/svg}text"))


def test_energy_reaches_the_diagnosis_and_every_skip_is_told(spoken: str) -> None:
    assert (
        "Energy is an objective too: no findings (energy diagnostics: there are none for this target)."
        in spoken
    )
    notes = spoken.split("Not examined:\n")[1].splitlines()
    assert (
        "- own: it failed: AttributeError: 'CpuProfile' object has no attribute 'missing'" in notes
        and any(note.startswith("- energy diagnostics: ") for note in notes)
    )
    assert "## Time of a call" in spoken and "## Not measured" not in spoken


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text on a slow candidate where energy counts, with a diagnostic from a file, which the track record discounts,
    one that fails, and an installed one."""
    folder = tmp_path_factory.mktemp("third")
    (folder / "slow.py").write_text(SLOW)
    (folder / "from_file.py").write_text(OWN_DIAGNOSTIC.format(name="from_file", saved=0.6))
    (folder / "own.py").write_text(
        OWN_DIAGNOSTIC.format(name="own", saved=0.5).replace("cpu.dynamic", "cpu.missing")
    )
    site = folder / "site"
    (site / "third_party-1.0.dist-info").mkdir(parents=True)
    (site / "third_party-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n"
    )
    (site / "third_party-1.0.dist-info" / "entry_points.txt").write_text(
        "[kernelpro.diagnostics]\ninstalled = third_party\n"
    )
    (site / "third_party.py").write_text(OWN_DIAGNOSTIC.format(name="installed", saved=0.5))
    (folder / "kernelpro").mkdir()
    trial = json.dumps({"diagnostic": "from_file", "predicted": 2.5, "achieved": 1.0})
    (folder / "kernelpro" / "track-record.jsonl").write_text(f"{trial}\n" * 20)
    changes = {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}
    arguments = (
        "profile",
        BAD / "task.py",
        folder / "slow.py",
        "--target",
        "cpu",
        "--raw",
        "--energy",
        "--diagnostic",
        folder / "from_file.py",
        "--diagnostic",
        folder / "own.py",
    )
    done = kernelpro(*arguments, **changes, XDG_DATA_HOME=str(folder))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_text_says_class_time_directives_and_evidence(spoken: str) -> None:
    assert spoken.startswith("The call is launch-bound ")
    assert "floor" in spoken and "Evidence: " in spoken and "Expected: up to " in spoken
    assert "## Time of a call" in spoken


def test_third_party_diagnostics_run_from_a_file_and_when_installed(spoken: str) -> None:
    assert "from_file: it is from_file" in spoken and "installed: it is installed" in spoken


def test_a_slow_candidate_is_profiled(spoken: str) -> None:
    assert float(spoken.split("Profiled time ")[1].split(" ms")[0]) > 20


def test_a_diagnostic_that_overestimated_its_gains_ranks_lower(spoken: str) -> None:
    assert spoken.index("installed: it is") < spoken.index("from_file: it is")


@pytest.mark.long  # the next ones have the reasons, without a process of their own
def test_a_candidate_that_crashes_is_told_without_a_traceback() -> None:
    done = kernelpro("profile", BAD / "task.py", BAD / "segfault.py", "--target", "cpu", "--json")
    assert done.returncode == 2 and not done.stdout
    assert "segfault.py cannot be profiled (crashed)" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compiler_error.py", "(build_failed): kernel.cpp"),
        ("no_model.py", "(build_failed): the candidate defines no class ModelNew"),
        ("endless_loop.py", "(timed_out): in forward: took more than 3 s"),
        ("raises_in_forward.py", "(crashed): forward raised ValueError"),
    ],
)
def test_why_a_candidate_cannot_be_profiled(name: str, message: str, worker: JobRunner) -> None:
    job = Job(
        "1",
        "profile",
        Task.from_file(BAD / "task.py"),
        Candidate.from_file(BAD / name),
        "cpu",
        Options(call_timeout=3.0),
    )
    result = worker.run(job)
    assert result.profile is None and f"{name} cannot be profiled {message}" in (result.error or "")


def test_missing_files_and_bad_options_are_one_line(tmp_path: Path) -> None:
    assert "task file not found" in refused("profile", tmp_path / "none.py", *CPU[1:])
    assert "candidate file not found" in refused("profile", CPU[0], tmp_path / "none.py", *CPU[2:])
    assert "diagnostic file not found" in refused("profile", *CPU, "--diagnostic", tmp_path / "none.py")
    assert "--tracer" in refused("profile", *CPU, "--tracer", "strace")
    assert "--compare" in refused("profile", *CPU, "--compare", "cublas")
    assert "a file that ends in .svg" in refused("profile", *CPU, "--plot", tmp_path / "roofline.png")
    assert "does not exist" in refused("profile", *CPU, "--plot", tmp_path / "none" / "roofline.svg")
    (tmp_path / "taken.svg").mkdir()
    assert "cannot be written" in refused("profile", *CPU, "--plot", tmp_path / "taken.svg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("DIAGNOSTIC = 3", "is not a diagnostic"),
        ("", "is not a diagnostic"),
    ],
)
def test_a_diagnostic_file_with_an_error_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(text)
    assert message in refused("diagnostics", "--diagnostic", tmp_path / "own.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere", "No module named 'nowhere'"),
        ("raise SystemExit(0)", "SystemExit"),
        ("", "is not a diagnostic"),
    ],
)
def test_an_installed_diagnostic_that_cannot_be_imported_is_left_out_with_a_warning(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n"
    )
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(
        "[kernelpro.diagnostics]\nworse = broken_diagnostic\n"
    )
    (tmp_path / "broken_diagnostic.py").write_text(text)
    site = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = kernelpro("diagnostics", "--json", PYTHONPATH=site)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == len(registry())
    [line] = done.stderr.splitlines()
    assert "ignoring the installed diagnostic worse (broken_diagnostic)" in line and message in line


def test_the_list_of_diagnostics(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_DIAGNOSTIC.format(name="own", saved=0.5))
    table = in_process.kernelpro("diagnostics", "--diagnostic", tmp_path / "own.py")
    lines = in_process.kernelpro(
        "diagnostics", "--json", "--diagnostic", tmp_path / "own.py"
    ).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert {one["diagnostic"] for one in told} == {"own", *registry()}
    assert table.returncode == 0 and all(one["diagnostic"] in table.stdout for one in told)
    for one in told:
        assert one["level"] in ("kernel", "instruction", "system") and one["target"] in ("cuda", "cpu")
        assert one["trigger"] and one["remedy"] and one["gain_basis"]
    needs = {one["diagnostic"]: one["needs"] for one in told}
    assert needs["launch_overhead"] == ["timeline"] and needs["bank_conflicts"] == ["code", "lines"]
    assert needs["own"] == needs["cpu_page_faults"] == ["cpu"] and needs["energy_idle_clocks"] == [
        "timeline",
        "power",
    ]
    assert "code, lines, 6 counters" in " ".join(table.stdout.split())


def test_the_reference_page_is_current() -> None:
    page = in_process.kernelpro("diagnostics", "--page").stdout
    assert page == (DOCS / "reference" / "diagnostics.md").read_text(encoding="utf-8"), (
        "run: kernelpro diagnostics --page > docs/reference/diagnostics.md"
    )
    assert page.startswith("# Diagnostics") and all(f"| {name} |" in page for name in registry())
    assert diagnostics.reference_page([]).count("\n") < page.count("\n")


def test_the_diagnostic_of_the_documentation_works(tmp_path: Path) -> None:
    """The worked example, extracted from its page, on a kernel that it should match."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))]
    blocks = [block.split("```")[0] for page in pages for block in page.split("```python\n")[1:]]
    path = tmp_path / "instruction_cache.py"
    path.write_text(next(block for block in blocks if 'name="instruction_cache"' in block))
    diagnostic = registry([path])["instruction_cache"]
    metrics = {WARP_CYCLES: 12.0, stall_metric("no_instruction"): 6.0}
    kernel = Kernel("unrolled", 1000.0, 1, 1.0, metrics=metrics, code=KernelCode({}, 40000))
    work, ceilings = Work(1_000_000, 0, 1e10), Ceilings(4e12, 8e12, 1 << 20, {"fp32": 5e13})
    profile = Profile("cuda", 1.0, 0.25, work, ceilings, DeviceProperties(), "fp32", kernels=(kernel,))
    findings = {finding.diagnostic: finding for finding in runner.diagnose(profile, [diagnostic]).findings}
    finding = findings["instruction_cache"]
    assert finding.gain.factor > 1.25 and finding.kernel == "unrolled"
    kernel.metrics[stall_metric("no_instruction")] = 0.1
    again = runner.diagnose(profile, [diagnostic]).findings
    assert "instruction_cache" not in {finding.diagnostic for finding in again}


def test_the_doctor_knows_the_profilers(warm_kernelpro: WarmCommand) -> None:
    rows = json.loads(warm_kernelpro("doctor", "--json", KERNELPRO_NCU="").stdout)
    told = {row["what"]: row for row in rows}
    for name in ("tool nsys", "tool cuobjdump", "tool nvdisasm", "tool objdump", "CPU counters"):
        assert told[name]["state"] in ("ok", "weak", "missing") and told[name]["detail"]
    assert told["tool ncu"]["state"] == "missing" and "install Nsight Compute" in told["tool ncu"]["detail"]


def on_the_gpu(name: str, *arguments: str, **changes: str) -> dict[str, Any]:
    """The answer on a defect of the GPU's corpus."""
    path = DEFECTS / "gpu" / f"{name}.py"
    done = kernelpro(
        "profile",
        DEFECTS / "tasks" / f"{about(path)['task']}.py",
        path,
        "--json",
        "--raw",
        *arguments,
        **changes,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.gpu
def test_without_ncu_there_is_a_diagnosis_that_says_what_it_lacks() -> None:
    answer = on_the_gpu("d_double_precision", KERNELPRO_NCU="")
    assert answer["findings"][0]["diagnostic"] == "double_precision"
    assert answer["confidence"] == "medium" and "no counters were collected" in answer["why"]
    notes = {one["what"]: one for one in answer["skipped"]}
    assert notes["ncu"]["enable"] and "counter" in notes["uncoalesced_access"]["why"]
    assert (
        answer["profile"]["timeline"]["source"] == "cupti" and not answer["profile"]["kernels"][0]["metrics"]
    )


@pytest.mark.gpu
def test_with_counters_there_are_metrics_and_lines() -> None:
    answer = on_the_gpu("d_uncoalesced_access")
    if why := next((one["why"] for one in answer["skipped"] if one["what"] == "ncu"), None):
        pytest.skip(why)
    assert answer["findings"][0]["diagnostic"] == "uncoalesced_access"
    kernel = answer["profile"]["kernels"][0]
    assert set(ncu.BASE_METRICS) <= set(kernel["metrics"])
    assert (
        kernel["lines"][0]["where"].startswith("kernel.cu:")
        and kernel["lines"][0]["text"]
        and kernel["lines"][0]["stalls"]
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["d_launch_overhead", "d_host_sync", "d_needless_copies_host"])
def test_cupti_and_nsys_give_the_same_system_findings(name: str) -> None:
    def system(answer: dict[str, Any]) -> set[str]:
        return {
            one["diagnostic"]
            for one in answer["findings"]
            if one["level"] == "system" and one["severity"] == "high"
        }

    cupti = on_the_gpu(name, "--tracer", "cupti", KERNELPRO_NCU="")
    assert cupti["profile"]["timeline"]["source"] == "cupti"
    assert system(cupti) & set(about(DEFECTS / "gpu" / f"{name}.py")["defect"].split("/"))
    nsys = on_the_gpu(name, "--tracer", "nsys", KERNELPRO_NCU="")
    if why := next((one["why"] for one in nsys["skipped"] if one["what"] == "timeline by nsys"), None):
        pytest.skip(why)
    assert nsys["profile"]["timeline"]["source"] == "nsys"
    assert system(nsys) == system(cupti)
