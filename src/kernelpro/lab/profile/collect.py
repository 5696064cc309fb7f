"""Collecting a profile: times, timeline and static facts always; counters by ncu where they are asked for.

1. a subject in a cell: load, time a few calls under the judge's protocol, trace, hold under load while
   clocks and power are read, disassemble what its compilers left;
2. where counters are asked for: a second cell in which ncu runs the target program over the candidate and
   the references that are wanted for comparison;
3. everything that failed is in `skipped`, with the reason; a profile always comes back.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab.archive import unpack
from kernelpro.lab.languages import authored_kernels, detect
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.profile import cpu, ncu, nsys, sass, timeline
from kernelpro.lab.profile.device_properties import device_properties
from kernelpro.lab.profile.trace import Trace
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import ResourceLimits, SandboxedProcess
from kernelpro.lab.sandbox.wire import MalformedMessage, ChannelClosed, ReplyTimeout
from kernelpro.records import (
    Candidate,
    CompilerReport,
    CpuProfile,
    Kernel,
    KernelCode,
    Line,
    PowerReadings,
    Profile,
    ProfileRequest,
    Skipped,
    Timeline,
)

_TIMED_CALLS = 12
_TRACED_CALLS = 5
_LOAD_SECONDS = 0.5
_OBSERVE_SECONDS = 0.5
_MIN_SHARE = 0.03
"""Of the device time: kernels below are not worth a counter."""
_MAX_KERNELS = 6
_NCU_SECONDS = 240.0
_REPLY_SECONDS = 10.0
"""That a cell has to tell of a command that took too long."""
_KERNEL_TIMES = "times of the kernels"
_PROFILER_SYSCALLS = (
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "perf_event_open",
    "timer_create",
    "socket",
)
"""What ncu and nsys need to watch their target, in a cell whose other processes are theirs."""


class Collector:
    def __init__(self, bench: Bench, candidate: Candidate, report: Callable[[str], None]):
        self._bench, self._candidate, self._report = bench, candidate, report
        self._skipped: list[Skipped] = []
        self._clock = Stopwatch()

    def collect(self, request: ProfileRequest, previous: Profile | None = None) -> Profile:
        """`known`: a profile of this candidate to which counters are added. Raises the verdict of one that cannot run."""
        if previous is not None:
            self._skipped += previous.skipped
        profile = previous or self._profile_candidate(request)
        if self._bench.target == "cuda" and request.metrics:
            profile = self._add_counters(profile, request)
        before, seconds = profile.seconds, self._clock.seconds()
        seconds = before | seconds | {"total": before.get("total", 0.0) + seconds["total"]}
        return replace(profile, skipped=tuple(self._skipped), seconds=seconds)

    # --- in the candidate's own cell -----------------------------------------------------------------

    def _profile_candidate(self, counters: ProfileRequest) -> Profile:
        bench = self._bench
        self._report("loading")
        with self._clock("load"):
            participant = bench.start_candidate(
                "profile", allowed_syscalls=("perf_event_open", "timer_create")
            )  # the sampler's
        try:
            with self._clock("load"):
                bench.load_candidate(participant, self._candidate)
            self._report("timing")
            with self._clock("time"), bench.quiet():
                time_ms = self._time_calls(participant)
                bench.measure_ceilings()
            profile = Profile(
                target=bench.target,
                time_ms=time_ms,
                floor_ms=bench.floor_ms,
                work=bench.work,
                ceilings=bench.ceilings,
                device=device_properties(bench.target, bench.ceilings),
                precision=bench.precision,
                unit=bench.unit,
                language=detect(self._candidate.source).name,
                source=self._candidate.source,
            )
            participant.process.thaw()
            return (
                self._profile_cpu(participant, profile)
                if bench.target == "cpu"
                else self._profile_gpu(participant, profile, counters)
            )
        finally:
            participant.close()

    def _time_calls(self, participant: Participant) -> float:
        """Median of a few calls with cold caches, under the judge's protocol.

        All on the same values: making others for each call, as the judge does, costs up to a second on the CPU, and a
        candidate that answers from memory spoils no profile but its own.
        """
        seconds = self._bench.options.build_timeout
        inputs = self._bench.inputs(self._bench.new_seed())
        samples = []
        for index in range(_TIMED_CALLS):
            participant.prepare(seconds, warm=index > 0, collect=index == 0)
            samples.append(participant.call(inputs, self._bench.output_spec, seconds).sample.own_ms)
        return statistics.median(samples[2:])

    def _request(self, participant: Participant, what: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """An answer, or a note on why there is none. A dead child is the end of the profile."""
        try:
            return participant.request(request, self._bench.options.build_timeout)
        except CandidateRejected as error:
            if participant.process.has_ended():
                raise
            self._skipped.append(Skipped(what, error.reason.splitlines()[0][:300]))
            return None

    def _profile_gpu(self, participant: Participant, profile: Profile, counters: ProfileRequest) -> Profile:
        self._report("tracing")
        kernels: list[Kernel] = []
        line: Timeline | None = None
        with self._clock("timeline"):
            trace = self._trace(participant, counters)
            if trace is not None:
                try:
                    line, kernels = timeline.summarize(trace.events, trace.calls, trace.source)
                except ValueError as error:
                    self._skipped.append(Skipped("timeline", str(error)))
                if trace.note:
                    self._skipped.append(Skipped("timeline by CUPTI", trace.note))
        with self._clock("power"):
            power = self._measure_power(participant)
        self._report("reading the machine code")
        with self._clock("code"):
            request = {"op": "disassemble", "source": self._candidate.source}
            static = self._request(participant, "machine code", request) or {}
        self._skipped += [Skipped.from_json(note) for note in static.get("skipped", ())]
        code = sass.StaticAnalysis(static.get("kernels", {}))
        own = authored_kernels(self._candidate.source)
        if line is None and (kernels := _kernels_from_code(code, profile.time_ms)):
            why = "not known without a timeline: until they are counted, each kernel in the machine code is given an equal part"
            self._skipped.append(Skipped(_KERNEL_TIMES, why))
        kernels = [
            replace(
                kernel,
                code=_code(
                    sass.find_variant(
                        code, kernel.name, kernel.registers, _threads(kernel), kernel.dynamic_shared
                    )
                ),
                authored=sass.plain_name(kernel.name) in own,
            )
            for kernel in kernels
        ]
        sources = {f"kernel{Path(name).suffix}": text for name, text in static.get("sources", {}).items()}
        compiler = CompilerReport(tuple(static.get("warnings", ())), sources, static.get("configuration", {}))
        return replace(profile, kernels=tuple(kernels), timeline=line, compiler=compiler, power=power)

    def _trace(self, participant: Participant, counters: ProfileRequest) -> Trace | None:
        if counters.tracer == "nsys":
            found = self._trace_with_nsys()
            if isinstance(found, Trace):
                return found
            self._skipped.append(found)
        answer = self._request(participant, "timeline", {"op": "trace", "set": 0, "calls": _TRACED_CALLS})
        try:
            return Trace.from_json(answer["trace"]) if answer else None
        except ValueError as error:
            self._skipped.append(Skipped("timeline", str(error)))
            return None

    def _measure_power(self, participant: Participant) -> PowerReadings | None:
        """Clock and power while calls follow each other."""
        sensors = environment.sensors()
        participant.send({"op": "sustain", "set": 0, "seconds": _LOAD_SECONDS})
        end, readings = time.monotonic() + _LOAD_SECONDS, []
        time.sleep(_LOAD_SECONDS / 4)  # clocks and the power sensor need a moment to follow
        while time.monotonic() < end:
            readings.append(sensors.read())
            time.sleep(0.02)
        try:
            participant.receive("sustain", self._bench.options.build_timeout)
        except CandidateRejected as error:
            self._skipped.append(Skipped("power", error.reason[:300]))
        found: dict[str, float] = {}
        for name, unit in (("sm_mhz", 1.0), ("power_mw", 1e-3)):
            values = [value * unit for reading in readings if (value := reading[name]) is not None]
            if values:
                found["watts" if name == "power_mw" else name] = statistics.median(values)
        reasons = [reading["throttle"] for reading in readings if reading["throttle"] is not None]
        if reasons:
            found["capped"] = sum(bool(reason & gpu.POWER_CAP) for reason in reasons) / len(reasons)
        for name, limit in (("limit_watts", sensors.power_limit_watts()), ("max_sm_mhz", sensors.max_mhz())):
            if limit is not None:
                found[name] = limit
        if "watts" not in found:
            self._skipped.append(
                Skipped("power", "NVML gives no reading here", "install the driver's libnvidia-ml")
            )
        return PowerReadings(**found) if found else None

    def _profile_cpu(self, participant: Participant, profile: Profile) -> Profile:
        self._report("reading the machine code")
        with self._clock("code"):  # before watching, which builds a sampler of its own
            static = self._request(participant, "machine code", {"op": "disassemble"}) or {}
        self._report("watching threads and counters")
        with self._clock("watch"), self._bench.quiet():
            watched = (
                self._request(participant, "threads", {"op": "watch", "set": 0, "seconds": _OBSERVE_SECONDS})
                or {}
            )
        dynamic, code = watched.get("watched", {}), static.get("static", {})
        for part in (dynamic, code):
            self._skipped += [Skipped.from_json(note) for note in part.pop("skipped", ())]
        joined = cpu.build_profile(code, dynamic, static.get("sources", {})) if code and dynamic else None
        return replace(profile, cpu=CpuProfile.from_json(joined) if joined else None)

    # --- external profilers, in a cell of their own --------------------------------------------------

    def make_bundle(self, references: tuple[str, ...] = ()) -> dict[str, Any]:
        """What the target program loads: the task, the candidate, and references beside it."""
        bench = self._bench
        request, tail = bench.load_request(self._candidate)
        entries = [{"request": request, "tail": tail}, *({"variant": name} for name in references)]
        return {"task": bench.task, "seed": bench.seed, "tf32": bench.precision == "tf32", "entries": entries}

    def _pack_bundle(self, references: tuple[str, ...]) -> bytes:
        data, archive = io.BytesIO(), io.BytesIO()
        torch.save([self.make_bundle(references)], data)
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo("bundle.pt")
            member.size = data.tell()
            tar.addfile(member, io.BytesIO(data.getvalue()))
        return archive.getvalue()

    def _run_commands(
        self,
        commands: list[list[str]],
        references: tuple[str, ...],
        collect: tuple[str, ...] = (),
        seconds: float = _NCU_SECONDS,
    ) -> tuple[list[dict[str, Any]], bytes]:
        """Run commands, for so many seconds each, in a cell that holds the bundle; what they printed, a tar of what they left."""
        memory = int(0.75 * _host_bytes())
        cell: SandboxedProcess = self._bench.launcher.start(
            "profile",
            ResourceLimits(memory, address_space=False),
            environment={"PYTHONPATH": _here()},
            allowed_syscalls=_PROFILER_SYSCALLS,
            private_tmp=True,  # nsys writes there, whatever TMPDIR says
        )
        try:
            request = {"op": "execute", "commands": commands, "seconds": seconds, "collect": collect}
            cell.channel.send(request, self._pack_bundle(references))
            answer, blob = cell.channel.receive(len(commands) * seconds + _REPLY_SECONDS)
            return _parse_results(answer), blob
        except (ChannelClosed, ReplyTimeout, MalformedMessage) as error:
            return [{"code": 1, "out": "", "err": f"the cell was lost: {type(error).__name__}"}], b""
        finally:
            cell.kill()

    def _add_counters(self, profile: Profile, counters: ProfileRequest) -> Profile:
        """The profile with what ncu counted, and the references beside it."""
        program = ncu.find_ncu()
        if program is None:
            enable = "install Nsight Compute, or put ncu on the PATH"
            self._skipped.append(Skipped("ncu", "ncu was not found or is forbidden", enable))
            return profile
        self._report("counting with ncu")
        main_kernels = [k for k in profile.kernels if k.share >= _MIN_SHARE][:_MAX_KERNELS]
        all_of_them = counters.references or profile.timeline is None
        names = () if all_of_them else tuple(dict.fromkeys(sass.plain_name(k.name) for k in main_kernels))
        with self._clock("ncu"):
            ended = self._run_ncu(program, counters, names)
        if len(ended) < 2 or ended[1]["code"]:
            failure = ncu.explain_failure(ended[-1]["out"] + ended[-1]["err"])
            if (
                counters.references and failure.enable != ncu.PERMISSION
            ):  # they may be what failed, or took too long
                self._skipped.append(Skipped("compare", failure.why))
                return self._add_counters(profile, replace(counters, references=()))
            self._skipped.append(failure)
            return profile
        found = ncu.parse_raw_page(ended[1]["out"], 1 + len(counters.references))
        sources = profile.compiler.sources | {"candidate.py": self._candidate.source}
        lines = (
            ncu.parse_source_page(ended[2]["out"], sources) if len(ended) > 2 and not ended[2]["code"] else {}
        )
        room = _max_launches(counters)
        cut = f"it stops after {room} launches" if ncu.count_launches(ended[1]["out"]) >= room else ""
        if not found[0]:
            self._skipped.append(Skipped("ncu", "it counted no kernel of the candidate"))
        elif cut:
            self._skipped.append(Skipped("ncu", f"{cut}: later ones are not counted"))
        for name, counted in zip(counters.references, found[1:], strict=True):
            if not counted:
                why = (
                    f"{cut}, which the kernels before it used up"
                    if cut
                    else "it did not run under ncu, or has no kernel"
                )
                self._skipped.append(Skipped(f"compare {name}", why))
        bare = replace(profile, timeline=None, source="", compiler=CompilerReport(), power=None)
        references = {
            name: replace(bare, kernels=kernels_from_counters(counted), time_ms=_total_ms(counted))
            for name, counted in zip(counters.references, found[1:], strict=True)
            if counted
        }
        if profile.timeline is None and found[0]:
            profile = self._with_ncu_times(profile, found[0])
        return replace(add_counters(profile, found[0], lines), references=references)

    def _run_ncu(
        self, program: str, counters: ProfileRequest, names: tuple[str, ...]
    ) -> list[dict[str, Any]]:
        """What its commands printed; run once more without the metrics that this device turns out not to have."""
        target = [sys.executable, "-m", "kernelpro.lab.profile.profiled_program", "bundle.pt", "ncu"]

        def run(without: frozenset[str]) -> list[dict[str, Any]]:
            commands = ncu.commands(
                program,
                target,
                counters.metrics,
                counters.sample_lines,
                names,
                _max_launches(counters),
                without,
            )
            ended: list[dict[str, Any]] = self._run_commands(commands, counters.references)[0]
            return ended

        ended = run(frozenset())
        if missing := ncu.unsupported_metrics(
            "\n".join(one["out"] + one["err"] for one in ended), counters.metrics
        ):
            self._skipped.append(Skipped("counters", f"ncu cannot read {', '.join(sorted(missing))} here"))
            ended = run(missing)
        return ended

    def _with_ncu_times(self, profile: Profile, counted: dict[str, ncu.KernelCounters]) -> Profile:
        """The kernels that ran, with their times under ncu; those in the machine code give their facts."""
        own, code = (
            authored_kernels(self._candidate.source),
            {kernel.name: kernel.code for kernel in profile.kernels},
        )
        kernels = [
            replace(
                kernel,
                code=next((code[name] for name in sass.matching_names(kernel.name, code)), None),
                authored=sass.plain_name(kernel.name) in own,
            )
            for kernel in kernels_from_counters(counted)
        ]
        self._skipped = [note for note in self._skipped if note.what != _KERNEL_TIMES]
        self._skipped.append(Skipped(_KERNEL_TIMES, "without a timeline, those under ncu are used"))
        return replace(profile, kernels=tuple(kernels))

    def _trace_with_nsys(self) -> Trace | Skipped:
        """The timeline by nsys, in a cell of its own."""
        program = nsys.find_nsys()
        if program is None:
            return nsys.not_found()
        target = [sys.executable, "-m", "kernelpro.lab.profile.profiled_program", "bundle.pt", "nsys"]
        report, database = Path("trace.nsys-rep"), Path("trace.sqlite")
        commands = [
            nsys.profile_command(program, report, target),
            nsys.export_command(program, report, database),
        ]
        ended, blob = self._run_commands(commands, (), (str(database), str(report), "trace.qdstrm"))
        with tempfile.TemporaryDirectory(prefix="kernelpro-nsys-") as folder:
            with contextlib.suppress(tarfile.TarError, OSError):  # one that was forged says nothing
                unpack(blob, folder)
            said = "".join(step["out"] + step["err"] for step in ended)
            return nsys.load_trace(Path(folder), ended[-1]["code"], said)


def add_counters(
    profile: Profile, counted: dict[str, ncu.KernelCounters], lines: dict[str, tuple[Line, ...]]
) -> Profile:
    """The profile with each kernel's counters and worst lines."""
    kernels = []
    for kernel in profile.kernels:
        found = ncu.merge_counters(counted[name] for name in sass.matching_names(kernel.name, counted))
        worst = next((lines[name] for name in sass.matching_names(kernel.name, lines)), ())
        kernels.append(replace(kernel, metrics=found.metrics if found else {}, lines=worst))
    return replace(profile, kernels=tuple(kernels))


def _parse_results(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """How commands ended. A candidate ran in that cell and may have answered in its place."""
    told = answer.get("ended")
    form = {"code": int, "out": str, "err": str}
    lines = told if isinstance(told, list) else []
    if lines and all(
        isinstance(one, dict) and all(isinstance(one.get(k), kind) for k, kind in form.items())
        for one in lines
    ):
        return lines
    return [{"code": 1, "out": "", "err": str(answer.get("error"))}]


def _code(facts: dict[str, Any]) -> KernelCode | None:
    """The record of the facts that `sass.match` returns; None where it found no variant."""
    return KernelCode.from_json(facts) if facts else None


def _threads(kernel: Kernel) -> int:
    product = 1
    for extent in kernel.block:
        product *= extent
    return product


def _total_ms(counted: dict[str, ncu.KernelCounters]) -> float:
    return sum(one.nanoseconds for one in counted.values()) / 1e6


def kernels_from_counters(counted: dict[str, ncu.KernelCounters]) -> tuple[Kernel, ...]:
    """Kernels as ncu alone knows them, by share."""
    total = sum(one.nanoseconds for one in counted.values()) or 1.0
    made = [
        Kernel(
            name=one.name,
            microseconds=one.nanoseconds / 1e3,
            launches=one.launches,
            share=one.nanoseconds / total,
            grid=one.grid,
            block=one.block,
            registers=int(one.metrics.get("launch__registers_per_thread", 0)),
            static_shared=int(one.metrics.get("launch__shared_mem_per_block_static", 0)),
            dynamic_shared=int(one.metrics.get("launch__shared_mem_per_block_dynamic", 0)),
            authored=False,
            metrics=one.metrics,
        )
        for one in counted.values()
    ]
    return tuple(sorted(made, key=lambda kernel: -kernel.share))


def _kernels_from_code(code: sass.StaticAnalysis, time_ms: float) -> list[Kernel]:
    """Kernels of which only the machine code is known: one for each symbol, in equal parts of a call."""
    names = list(
        dict.fromkeys(facts["signature"] for variants in code.kernels.values() for facts in variants)
    )
    return [Kernel(name, 1e3 * time_ms / len(names), 1, 1 / len(names)) for name in names]


def _max_launches(counters: ProfileRequest) -> int:
    """How many ncu counts: so that a candidate of many kernels leaves room for what is beside it."""
    return ncu.MAX_LAUNCHES * (1 + len(counters.references))


def _here() -> str:
    return str(Path(__file__).resolve().parents[3])


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
