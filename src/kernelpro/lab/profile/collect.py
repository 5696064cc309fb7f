"""Collects a profile: always times, timeline and static facts; on request also hardware counters by ncu.

1. A sandboxed process loads the candidate. The collector times a few calls under the judge's protocol, traces
   calls, reads clocks and power under load, and disassembles the build artifacts.
2. If the request has metrics, ncu runs the candidate, and the references to compare with, in a second
   process.
3. Steps that fail are listed in `skipped` with the reason. The collector returns a profile in any case,
   unless the candidate itself fails.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from kernelpro.lab.archive import unpack
from kernelpro.lab.languages import detect, own_kernels
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.profile import cpu_shares, ncu, nsys, sass, timeline
from kernelpro.lab.profile.device_properties import device_properties
from kernelpro.lab.profile.kernel_names import matching_names, plain_name
from kernelpro.lab.profile.profiler_sandbox import BUNDLE, CommandResult, ProfilerSandbox
from kernelpro.lab.profile.trace import Trace
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import (
    Candidate,
    CompilerReport,
    Kernel,
    KernelCode,
    Line,
    PowerReadings,
    Profile,
    ProfileRequest,
    Skipped,
    Status,
    Timeline,
)
from kernelpro.records.cpu_profile import CpuCode, CpuRun

_TIMED_CALLS = 12
_TRACED_CALLS = 5
_MAX_CALLS_A_REQUEST = 20
"""An upper bound on the calls of one request, warm-up included. It determines the timeout."""
_LOAD_SECONDS = 0.5
_OBSERVE_SECONDS = 0.5
_MIN_SHARE = 0.03
"""ncu does not measure kernels with a smaller share of the device time."""
_MAX_KERNELS = 6
_KERNEL_TIMES = "times of the kernels"
_PROGRAM = [sys.executable, "-m", "kernelpro.lab.profile.profiled_program", BUNDLE]

Parsed = TypeVar("Parsed")


class Collector:
    """Collects profiles of one candidate."""

    def __init__(self, bench: Bench, candidate: Candidate, report: Callable[[str], None]):
        self._bench, self._candidate, self._report = bench, candidate, report
        self.sandbox = ProfilerSandbox(bench, candidate)
        self._skipped: list[Skipped] = []
        self._clock = Stopwatch()
        self._several_calls_timeout = bench.options.call_timeout
        """Time limit in seconds for a request with several calls."""

    def collect(self, request: ProfileRequest, previous: Profile | None = None) -> Profile:
        """Return a new profile, or `previous` with counters added.

        Raises CandidateRejected if the candidate fails.
        """
        if previous is not None:
            self._skipped += previous.skipped
        profile = previous or self._profile_candidate(request)
        if self._bench.target == "cuda" and request.metrics:
            profile = self._add_counters(profile, request)
        before, seconds = profile.seconds, self._clock.seconds()
        seconds = before | seconds | {"total": before.get("total", 0.0) + seconds["total"]}
        return replace(profile, skipped=tuple(self._skipped), seconds=seconds)

    # --- in the candidate's own process --------------------------------------------------------------

    def _profile_candidate(self, request: ProfileRequest) -> Profile:
        bench = self._bench
        self._report("loading")
        with self._clock("load"):
            sampler_syscalls = ("perf_event_open", "timer_create")
            participant = bench.start_candidate("profile", allowed_syscalls=sampler_syscalls)
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
            if bench.target == "cpu":
                return self._profile_cpu(participant, profile)
            return self._profile_gpu(participant, profile, request)
        finally:
            participant.close()

    def _time_calls(self, participant: Participant) -> float:
        """Return the median time in ms of a few calls with cold caches, under the judge's protocol.

        All calls use the same inputs. The judge generates new ones for each call, which takes up to a second
        on the CPU. A candidate that caches its outputs spoils only its own profile."""
        options, spec = self._bench.options, self._bench.output_spec
        inputs = self._bench.inputs(self._bench.new_seed())
        samples = []
        for index in range(_TIMED_CALLS):
            participant.prepare(options.call_timeout, warm=index > 0, collect=index == 0)
            with participant.may_compile(options.build_timeout if index == 0 else None):
                samples.append(participant.call(inputs, spec, options.call_timeout).sample.own_ms)
        self._several_calls_timeout = options.call_timeout + _MAX_CALLS_A_REQUEST * max(samples) / 1e3
        return statistics.median(samples[2:])

    def _request(self, participant: Participant, what: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer of the candidate's process, or None with a note in `skipped`.

        Raises CandidateRejected if the process has ended or hangs.
        """
        options = self._bench.options
        disassembles = request["op"] == "disassemble"
        seconds = options.build_timeout if disassembles else self._several_calls_timeout
        try:
            with participant.may_compile(options.build_timeout):
                answer = participant.request(request, seconds)
        except CandidateRejected as error:
            if participant.process.has_ended() or error.status is Status.TIMED_OUT:
                raise
            self._skipped.append(Skipped(what, error.reason.splitlines()[0][:300]))
            return None
        notes = self._parse(what, lambda: [Skipped.from_json(note) for note in answer.get("skipped", ())])
        self._skipped += notes or []
        return answer

    def _parse(self, what: str, parse: Callable[[], Parsed]) -> Parsed | None:
        """Return what `parse` returns, or None with a note if the answer is malformed: it is untrusted."""
        try:
            return parse()
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            self._skipped.append(Skipped(what, f"malformed answer ({type(error).__name__}: {error})"[:300]))
            return None

    def _profile_gpu(self, participant: Participant, profile: Profile, request: ProfileRequest) -> Profile:
        self._report("tracing")
        kernels: list[Kernel] = []
        summary: Timeline | None = None
        with self._clock("timeline"):
            trace = self._trace(participant, request)
            if trace is not None:
                try:
                    summary, kernels = timeline.summarize(trace.events, trace.calls, trace.source)
                except ValueError as error:
                    self._skipped.append(Skipped("timeline", str(error)))
                if trace.note:
                    self._skipped.append(Skipped("timeline by CUPTI", trace.note))
        with self._clock("power"):
            power = self._measure_power(participant)
        self._report("disassembling")
        with self._clock("code"):
            disassemble = {"op": "disassemble", "source": self._candidate.source}
            answer = self._request(participant, "machine code", disassemble) or {}
        analysis = self._parse("machine code", lambda: _analysis(answer)) or sass.StaticAnalysis()
        compiler = self._parse("compiler", lambda: _compiler_report(answer)) or CompilerReport()
        if summary is None and (kernels := _kernels_from_code(analysis, profile.time_ms)):
            why = "unknown without a timeline: all kernels get equal shares until ncu measures them"
            self._skipped.append(Skipped(_KERNEL_TIMES, why))
        authored = own_kernels(self._candidate.source)
        kernels = [
            replace(
                kernel,
                code=sass.find_variant(
                    analysis, kernel.name, kernel.registers, math.prod(kernel.block), kernel.dynamic_shared
                ),
                authored=plain_name(kernel.name) in authored,
            )
            for kernel in kernels
        ]
        return replace(profile, kernels=tuple(kernels), timeline=summary, compiler=compiler, power=power)

    def _trace(self, participant: Participant, request: ProfileRequest) -> Trace | None:
        if request.tracer == "nsys":
            trace = self._trace_with_nsys()
            if isinstance(trace, Trace):
                return trace
            self._skipped.append(trace)
        answer = self._request(participant, "timeline", {"op": "trace", "set": 0, "calls": _TRACED_CALLS})
        return self._parse("timeline", lambda: Trace.from_json(answer["trace"])) if answer else None

    def _measure_power(self, participant: Participant) -> PowerReadings | None:
        """Read clock and power while calls run back to back."""
        sensors = environment.sensors()
        participant.send({"op": "sustain", "set": 0, "seconds": _LOAD_SECONDS})
        end, readings = time.monotonic() + _LOAD_SECONDS, []
        time.sleep(_LOAD_SECONDS / 4)  # clocks and the power sensor follow the load with a delay
        while time.monotonic() < end:
            readings.append(sensors.read())
            time.sleep(0.02)
        try:
            participant.receive("sustain", self._several_calls_timeout)
        except CandidateRejected as error:
            if error.status is Status.TIMED_OUT:
                raise
            self._skipped.append(Skipped("power", error.reason[:300]))

        def values(name: str) -> list[int]:
            return [value for reading in readings if (value := reading[name]) is not None]

        clocks, milliwatts, reasons = values("sm_mhz"), values("power_mw"), values("throttle")
        if not milliwatts:
            self._skipped.append(
                Skipped("power", "NVML reports no power", "install the driver's libnvidia-ml")
            )
        power = PowerReadings(
            watts=statistics.median(milliwatts) / 1e3 if milliwatts else None,
            limit_watts=sensors.power_limit_watts(),
            sm_mhz=statistics.median(clocks) if clocks else None,
            max_sm_mhz=sensors.max_mhz(),
            capped=sum(bool(bits & gpu.POWER_CAP) for bits in reasons) / len(reasons) if reasons else None,
        )
        return power if power != PowerReadings() else None

    def _profile_cpu(self, participant: Participant, profile: Profile) -> Profile:
        self._report("disassembling")
        with self._clock("code"):  # first, because observing builds the sampler, another library
            static = self._request(participant, "machine code", {"op": "disassemble"})
        self._report("observing threads and counters")
        with self._clock("watch"), self._bench.quiet():
            observe = {"op": "observe", "set": 0, "seconds": _OBSERVE_SECONDS}
            dynamic = self._request(participant, "threads", observe)
        if not static or not dynamic:
            return profile
        cpu = self._parse(
            "CPU profile",
            lambda: cpu_shares.build_profile(
                CpuCode.from_json(static["code"]), CpuRun.from_json(dynamic["run"]), static["sources"]
            ),
        )
        return replace(profile, cpu=cpu)

    # --- external profilers, in a separate process ---------------------------------------------------

    def _add_counters(self, profile: Profile, request: ProfileRequest) -> Profile:
        """Return the profile with ncu's counters, and the references."""
        program = ncu.find_ncu()
        if program is None:
            enable = "install Nsight Compute, or put ncu on the PATH"
            self._skipped.append(Skipped("ncu", "ncu was not found or is disabled", enable))
            return profile
        self._report("counting with ncu")
        names: tuple[str, ...] = ()
        if profile.timeline and not request.references:
            main_kernels = [k for k in profile.kernels if k.share >= _MIN_SHARE][:_MAX_KERNELS]
            names = tuple(dict.fromkeys(plain_name(kernel.name) for kernel in main_kernels))
        with self._clock("ncu"):
            results = self._run_ncu(program, request, names)
        if len(results) < 2 or results[1].code:
            failure = ncu.explain_failure(results[-1].output)
            if request.references and failure.enable != ncu.PERMISSION:  # a reference may have failed or hung
                self._skipped.append(Skipped("compare", failure.why))
                return self._add_counters(profile, replace(request, references=()))
            self._skipped.append(failure)
            return profile
        raw_page = results[1].out
        counters, *reference_counters = ncu.parse_raw_page(
            raw_page, 1 + len(request.references), marked=bool(request.references)
        )
        sources = profile.compiler.sources | {"candidate.py": self._candidate.source}
        has_lines = len(results) > 2 and not results[2].code
        lines = ncu.parse_source_page(results[2].out, sources) if has_lines else {}
        limit = _max_launches(request)
        cut = f"it stops after {limit} launches" if ncu.count_launches(raw_page) >= limit else ""
        if not counters:
            self._skipped.append(Skipped("ncu", "it measured no kernel of the candidate"))
        elif cut:
            self._skipped.append(Skipped("ncu", f"{cut}: later launches are not counted"))
        bare = replace(profile, timeline=None, source="", compiler=CompilerReport(), power=None)
        references: dict[str, Profile] = {}
        for name, kernels in zip(request.references, reference_counters, strict=True):
            if kernels:
                time_ms = sum(kernel.nanoseconds for kernel in kernels.values()) / 1e6
                references[name] = replace(bare, kernels=kernels_from_counters(kernels), time_ms=time_ms)
            else:
                why = "it did not run under ncu, or has no kernel"
                if cut:
                    why = f"{cut}, and earlier kernels have used up all of them"
                self._skipped.append(Skipped(f"compare {name}", why))
        if profile.timeline is None and counters:
            profile = self._with_ncu_times(profile, counters)
        return replace(add_counters(profile, counters, lines), references=references)

    def _run_ncu(self, program: str, request: ProfileRequest, names: tuple[str, ...]) -> list[CommandResult]:
        """Run ncu's commands. If this device does not support some metrics, run them again without those."""

        def run(unsupported: frozenset[str]) -> list[CommandResult]:
            commands = ncu.commands(
                program,
                [*_PROGRAM, "ncu"],
                request.metrics,
                request.sample_lines,
                names,
                _max_launches(request),
                unsupported,
            )
            return self.sandbox.run(commands, request.references)[0]

        results = run(frozenset())
        output = "\n".join(result.output for result in results)
        if missing := ncu.unsupported_metrics(output, request.metrics):
            self._skipped.append(
                Skipped("counters", f"ncu does not support {', '.join(sorted(missing))} here")
            )
            results = run(missing)
        return results

    def _with_ncu_times(self, profile: Profile, counters: dict[str, ncu.KernelCounters]) -> Profile:
        """Return the profile with the kernels and times that ncu measured, and the known machine code."""
        authored = own_kernels(self._candidate.source)
        code = {kernel.name: kernel.code for kernel in profile.kernels}
        kernels = [
            replace(
                kernel,
                code=next((code[name] for name in matching_names(kernel.name, code)), None),
                authored=plain_name(kernel.name) in authored,
            )
            for kernel in kernels_from_counters(counters)
        ]
        self._skipped = [note for note in self._skipped if note.what != _KERNEL_TIMES]
        self._skipped.append(Skipped(_KERNEL_TIMES, "measured under ncu, because there is no timeline"))
        return replace(profile, kernels=tuple(kernels))

    def _trace_with_nsys(self) -> Trace | Skipped:
        program = nsys.find_nsys()
        if program is None:
            return nsys.not_found()
        report, database = Path("trace.nsys-rep"), Path("trace.sqlite")
        commands = [
            nsys.profile_command(program, report, [*_PROGRAM, "nsys"]),
            nsys.export_command(program, report, database),
        ]
        results, files = self.sandbox.run(commands, (), (str(database), str(report), "trace.qdstrm"))
        with tempfile.TemporaryDirectory(prefix="kernelpro-nsys-") as folder:
            with contextlib.suppress(tarfile.TarError, OSError):  # ignore a forged archive
                unpack(files, folder)
            output = "".join(result.output for result in results)
            return nsys.load_trace(Path(folder), results[-1].code, output)


def add_counters(
    profile: Profile, counters: dict[str, ncu.KernelCounters], lines: dict[str, tuple[Line, ...]]
) -> Profile:
    """Return the profile with each kernel's counters and worst lines."""
    kernels = []
    for kernel in profile.kernels:
        merged = ncu.merge_counters(counters[name] for name in matching_names(kernel.name, counters))
        worst = next((lines[name] for name in matching_names(kernel.name, lines)), ())
        kernels.append(replace(kernel, metrics=merged.metrics if merged else {}, lines=worst))
    return replace(profile, kernels=tuple(kernels))


def kernels_from_counters(counters: dict[str, ncu.KernelCounters]) -> tuple[Kernel, ...]:
    """Return the kernels that ncu measured, by share."""
    total = sum(kernel.nanoseconds for kernel in counters.values()) or 1.0
    kernels = [
        Kernel(
            name=kernel.name,
            microseconds=kernel.nanoseconds / 1e3,
            launches=kernel.launches,
            share=kernel.nanoseconds / total,
            grid=kernel.grid,
            block=kernel.block,
            registers=int(kernel.metrics.get("launch__registers_per_thread", 0)),
            static_shared=int(kernel.metrics.get("launch__shared_mem_per_block_static", 0)),
            dynamic_shared=int(kernel.metrics.get("launch__shared_mem_per_block_dynamic", 0)),
            authored=False,
            metrics=kernel.metrics,
        )
        for kernel in counters.values()
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.share))


def _analysis(answer: dict[str, Any]) -> sass.StaticAnalysis:
    kernels = answer.get("kernels", {}).items()
    return sass.StaticAnalysis(
        {name: [KernelCode.from_json(v) for v in variants] for name, variants in kernels}
    )


def _compiler_report(answer: dict[str, Any]) -> CompilerReport:
    sources = {f"kernel{Path(name).suffix}": text for name, text in answer.get("sources", {}).items()}
    return CompilerReport(tuple(answer.get("warnings", ())), sources, answer.get("configuration", {}))


def _kernels_from_code(analysis: sass.StaticAnalysis, time_ms: float) -> list[Kernel]:
    """Return one kernel for each symbol in the machine code, each with an equal share of the call's time."""
    names = list(dict.fromkeys(code.signature for codes in analysis.kernels.values() for code in codes))
    return [Kernel(name, 1e3 * time_ms / len(names), 1, 1 / len(names)) for name in names]


def _max_launches(request: ProfileRequest) -> int:
    """Return the number of launches that ncu measures. It grows with the number of references, so that a
    candidate with many kernels leaves some for them."""
    return ncu.MAX_LAUNCHES * (1 + len(request.references))
