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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kernelpro.lab.archive import unpack
from kernelpro.lab.languages import authored_kernels, detect
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.profile import cpu, facts, ncu, sass, timeline, timeline_nsys
from kernelpro.lab.profile.trace import Trace
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.answers import CandidateRejected
from kernelpro.lab.sandbox.cell import Limits, SandboxedProcess
from kernelpro.lab.sandbox.wire import Garbled, Gone, Late
from kernelpro.records import Candidate, Counters, Kernel, Line, Profile, Skipped, Timeline

_TIMED_CALLS = 12
_TRACED_CALLS = 5
_SUSTAINED_SECONDS = 0.5
_WATCHED_SECONDS = 0.5
_LEAST_SHARE = 0.03
"""Of the device time: kernels below are not worth a counter."""
_MOST_KERNELS = 6
_NCU_SECONDS = 240.0
_LATE_SECONDS = 10.0
"""That a cell has to tell of a command that took too long."""
_UNTIMED = "times of the kernels"
_DOORS = ("ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open", "timer_create", "socket")
"""What ncu and nsys need to watch their target, in a cell whose other processes are theirs."""


class Collector:
    def __init__(self, bench: Bench, candidate: Candidate, report: Callable[[str], None]):
        self._bench, self._candidate, self._report = bench, candidate, report
        self._skipped: list[Skipped] = []
        self._clock = Stopwatch()

    def collect(self, counters: Counters, known: Profile | None = None) -> Profile:
        """`known`: a profile of this candidate to which counters are added. Raises the verdict of one that cannot run."""
        if known is not None:
            self._skipped += known.skipped
        profile = known or self._subject(counters)
        if self._bench.target == "cuda" and counters.metrics:
            profile = self._counted(profile, counters)
        before, seconds = profile.seconds, self._clock.seconds()
        seconds = before | seconds | {"total": before.get("total", 0.0) + seconds["total"]}
        return replace(profile, skipped=tuple(self._skipped), seconds=seconds)

    # --- in the candidate's own cell -----------------------------------------------------------------

    def _subject(self, counters: Counters) -> Profile:
        bench = self._bench
        self._report("loading")
        with self._clock("load"):
            participant = bench.admit("subject", allow=("perf_event_open", "timer_create"))  # the sampler's
        try:
            with self._clock("load"):
                bench.load(participant, self._candidate)
            self._report("timing")
            with self._clock("time"), bench.quiet():
                time_ms = self._time(participant)
                bench.measure_ceilings()
            profile = Profile(
                target=bench.target,
                time_ms=time_ms,
                floor_ms=bench.floor_ms,
                work={k: v for k, v in asdict(bench.work).items() if k != "graph"},
                ceilings=asdict(bench.ceilings),
                device=facts.device(bench.target, bench.ceilings),
                precision=bench.precision,
                unit=bench.unit,
                language=detect(self._candidate.source).name,
                source=self._candidate.source,
                graph=tuple(asdict(op) for op in bench.work.graph),
            )
            participant.cell.thaw()
            return (
                self._watch_cpu(participant, profile)
                if bench.target == "cpu"
                else self._watch_gpu(participant, profile, counters)
            )
        finally:
            participant.close()

    def _time(self, participant: Participant) -> float:
        """Median of a few calls with cold caches, under the judge's protocol.

        All on the same values: making others for each call, as the judge does, costs up to a second on the CPU, and a
        candidate that answers from memory spoils no profile but its own.
        """
        seconds = self._bench.options.build_timeout
        inputs = self._bench.inputs(self._bench.new_seed())
        samples = []
        for index in range(_TIMED_CALLS):
            participant.prepare(seconds, warm=index > 0, tidy=index == 0)
            samples.append(participant.call(inputs, self._bench.expected, seconds).sample.own)
        return statistics.median(samples[2:])

    def _ask(self, participant: Participant, what: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """An answer, or a note on why there is none. A dead child is the end of the profile."""
        try:
            return participant.ask(request, self._bench.options.build_timeout)
        except CandidateRejected as error:
            if participant.cell.has_ended():
                raise
            self._skipped.append(Skipped(what, error.reason.splitlines()[0][:300]))
            return None

    def _watch_gpu(self, participant: Participant, profile: Profile, counters: Counters) -> Profile:
        self._report("tracing")
        kernels: list[Kernel] = []
        line: Timeline | None = None
        with self._clock("timeline"):
            trace = self._trace(participant, counters)
            if trace is not None:
                try:
                    line, kernels = timeline.summarise(trace.events, trace.calls, trace.source)
                except ValueError as error:
                    self._skipped.append(Skipped("timeline", str(error)))
                if trace.note:
                    self._skipped.append(Skipped("timeline by CUPTI", trace.note))
        with self._clock("power"):
            power = self._sustain(participant)
        self._report("reading the machine code")
        with self._clock("code"):
            request = {"op": "disassemble", "source": self._candidate.source}
            static = self._ask(participant, "machine code", request) or {}
        self._skipped += [Skipped.from_json(note) for note in static.get("skipped", ())]
        code = sass.Static(static.get("kernels", {}))
        own = authored_kernels(self._candidate.source)
        if line is None and (kernels := _of_the_code(code, profile.time_ms)):
            why = "not known without a timeline: until they are counted, each kernel in the machine code is given an equal part"
            self._skipped.append(Skipped(_UNTIMED, why))
        kernels = [
            replace(
                kernel,
                code=sass.match(code, kernel.name, kernel.registers, _threads(kernel), kernel.dynamic_shared),
                authored=sass.plain_name(kernel.name) in own,
            )
            for kernel in kernels
        ]
        compiler = {"warnings": static.get("warnings", []), "configuration": static.get("configuration", {})}
        compiler["sources"] = {
            f"kernel{Path(name).suffix}": text for name, text in static.get("sources", {}).items()
        }
        return replace(profile, kernels=tuple(kernels), timeline=line, compiler=compiler, power=power)

    def _trace(self, participant: Participant, counters: Counters) -> Trace | None:
        if counters.tracer == "nsys":
            found = self._nsys()
            if isinstance(found, Trace):
                return found
            self._skipped.append(found)
        answer = self._ask(participant, "timeline", {"op": "trace", "set": 0, "calls": _TRACED_CALLS})
        try:
            return Trace.from_json(answer["trace"]) if answer else None
        except ValueError as error:
            self._skipped.append(Skipped("timeline", str(error)))
            return None

    def _sustain(self, participant: Participant) -> dict[str, float]:
        """Clock and power while calls follow each other."""
        sensors = environment.sensors()
        participant.tell({"op": "sustain", "set": 0, "seconds": _SUSTAINED_SECONDS})
        end, readings = time.monotonic() + _SUSTAINED_SECONDS, []
        time.sleep(_SUSTAINED_SECONDS / 4)  # clocks and the power sensor need a moment to follow
        while time.monotonic() < end:
            readings.append(sensors.read())
            time.sleep(0.02)
        try:
            participant.hear("sustain", self._bench.options.build_timeout)
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
        for name, limit in (("limit_watts", sensors.limit_watts()), ("max_sm_mhz", sensors.most_mhz())):
            if limit is not None:
                found[name] = limit
        if "watts" not in found:
            self._skipped.append(
                Skipped("power", "NVML gives no reading here", "install the driver's libnvidia-ml")
            )
        return found

    def _watch_cpu(self, participant: Participant, profile: Profile) -> Profile:
        self._report("reading the machine code")
        with self._clock("code"):  # before watching, which builds a sampler of its own
            static = self._ask(participant, "machine code", {"op": "disassemble"}) or {}
        self._report("watching threads and counters")
        with self._clock("watch"), self._bench.quiet():
            watched = (
                self._ask(participant, "threads", {"op": "watch", "set": 0, "seconds": _WATCHED_SECONDS})
                or {}
            )
        dynamic, code = watched.get("watched", {}), static.get("static", {})
        for part in (dynamic, code):
            self._skipped += [Skipped.from_json(note) for note in part.pop("skipped", ())]
        found = cpu.join(code, dynamic, static.get("sources", {})) if code and dynamic else {}
        return replace(profile, cpu=found)

    # --- external profilers, in a cell of their own --------------------------------------------------

    def bundle(self, references: tuple[str, ...] = ()) -> dict[str, Any]:
        """What the target program loads: the task, the candidate, and references beside it."""
        bench = self._bench
        request, tail = bench.load_request(self._candidate)
        entries = [{"request": request, "tail": tail}, *({"variant": name} for name in references)]
        return {"task": bench.task, "seed": bench.seed, "tf32": bench.precision == "tf32", "entries": entries}

    def _packed(self, references: tuple[str, ...]) -> bytes:
        data, archive = io.BytesIO(), io.BytesIO()
        torch.save([self.bundle(references)], data)
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo("bundle.pt")
            member.size = data.tell()
            tar.addfile(member, io.BytesIO(data.getvalue()))
        return archive.getvalue()

    def _execute(
        self,
        commands: list[list[str]],
        references: tuple[str, ...],
        collect: tuple[str, ...] = (),
        seconds: float = _NCU_SECONDS,
    ) -> tuple[list[dict[str, Any]], bytes]:
        """Run commands, for so many seconds each, in a cell that holds the bundle; what they printed, a tar of what they left."""
        memory = int(0.75 * _host_bytes())
        cell: SandboxedProcess = self._bench.nursery.start(
            "subject",
            Limits(memory, address_space=False),
            environment={"PYTHONPATH": _here()},
            allow=_DOORS,
            own_tmp=True,  # nsys writes there, whatever TMPDIR says
        )
        try:
            request = {"op": "execute", "commands": commands, "seconds": seconds, "collect": collect}
            cell.channel.send(request, self._packed(references))
            answer, blob = cell.channel.receive(len(commands) * seconds + _LATE_SECONDS)
            return _ended(answer), blob
        except (Gone, Late, Garbled) as error:
            return [{"code": 1, "out": "", "err": f"the cell was lost: {type(error).__name__}"}], b""
        finally:
            cell.kill()

    def _counted(self, profile: Profile, counters: Counters) -> Profile:
        """The profile with what ncu counted, and the references beside it."""
        program = ncu.find()
        if program is None:
            enable = "install Nsight Compute, or put ncu on the PATH"
            self._skipped.append(Skipped("ncu", "ncu was not found or is forbidden", enable))
            return profile
        self._report("counting with ncu")
        worth = [k for k in profile.kernels if k.share >= _LEAST_SHARE][:_MOST_KERNELS]
        all_of_them = counters.references or profile.timeline is None
        names = () if all_of_them else tuple(dict.fromkeys(sass.plain_name(k.name) for k in worth))
        with self._clock("ncu"):
            ended = self._ncu(program, counters, names)
        if len(ended) < 2 or ended[1]["code"]:
            refused = ncu.refusal(ended[-1]["out"] + ended[-1]["err"])
            if (
                counters.references and refused.enable != ncu.PERMISSION
            ):  # they may be what failed, or took too long
                self._skipped.append(Skipped("compare", refused.why))
                return self._counted(profile, replace(counters, references=()))
            self._skipped.append(refused)
            return profile
        found = ncu.read_raw(ended[1]["out"], 1 + len(counters.references))
        sources = profile.compiler["sources"] | {"candidate.py": self._candidate.source}
        lines = ncu.read_lines(ended[2]["out"], sources) if len(ended) > 2 and not ended[2]["code"] else {}
        room = _launches(counters)
        cut = f"it stops after {room} launches" if ncu.launches(ended[1]["out"]) >= room else ""
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
        bare = replace(profile, timeline=None, source="", compiler={}, power={}, graph=())
        references = {
            name: replace(bare, kernels=counted_only(counted), time_ms=_total_ms(counted))
            for name, counted in zip(counters.references, found[1:], strict=True)
            if counted
        }
        if profile.timeline is None and found[0]:
            profile = self._timed_by_ncu(profile, found[0])
        return replace(with_counts(profile, found[0], lines), references=references)

    def _ncu(self, program: str, counters: Counters, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """What its commands printed; run once more without the metrics that this device turns out not to have."""
        target = [sys.executable, "-m", "kernelpro.lab.profile.target", "bundle.pt", "ncu"]

        def run(without: frozenset[str]) -> list[dict[str, Any]]:
            commands = ncu.commands(
                program, target, counters.metrics, counters.lines, names, _launches(counters), without
            )
            ended: list[dict[str, Any]] = self._execute(commands, counters.references)[0]
            return ended

        ended = run(frozenset())
        if missing := ncu.unknown("\n".join(one["out"] + one["err"] for one in ended), counters.metrics):
            self._skipped.append(Skipped("counters", f"ncu cannot read {', '.join(sorted(missing))} here"))
            ended = run(missing)
        return ended

    def _timed_by_ncu(self, profile: Profile, counted: dict[str, ncu.Counted]) -> Profile:
        """The kernels that ran, with their times under ncu; those in the machine code give their facts."""
        own, code = (
            authored_kernels(self._candidate.source),
            {kernel.name: kernel.code for kernel in profile.kernels},
        )
        kernels = [
            replace(
                kernel,
                code=next((code[name] for name in sass.instances(kernel.name, code)), {}),
                authored=sass.plain_name(kernel.name) in own,
            )
            for kernel in counted_only(counted)
        ]
        self._skipped = [note for note in self._skipped if note.what != _UNTIMED]
        self._skipped.append(Skipped(_UNTIMED, "without a timeline, those under ncu are used"))
        return replace(profile, kernels=tuple(kernels))

    def _nsys(self) -> Trace | Skipped:
        """The timeline by nsys, in a cell of its own."""
        program = timeline_nsys.find()
        if program is None:
            return timeline_nsys.absent()
        target = [sys.executable, "-m", "kernelpro.lab.profile.target", "bundle.pt", "nsys"]
        report, database = Path("trace.nsys-rep"), Path("trace.sqlite")
        commands = [
            timeline_nsys.profile_argv(program, report, target),
            timeline_nsys.export_argv(program, report, database),
        ]
        ended, blob = self._execute(commands, (), (str(database), str(report), "trace.qdstrm"))
        with tempfile.TemporaryDirectory(prefix="kernelpro-nsys-") as folder:
            with contextlib.suppress(tarfile.TarError, OSError):  # one that was forged says nothing
                unpack(blob, folder)
            said = "".join(step["out"] + step["err"] for step in ended)
            return timeline_nsys.outcome(Path(folder), ended[-1]["code"], said)


def with_counts(
    profile: Profile, counted: dict[str, ncu.Counted], lines: dict[str, tuple[Line, ...]]
) -> Profile:
    """The profile with each kernel's counters and worst lines."""
    kernels = []
    for kernel in profile.kernels:
        found = ncu.merged(counted[name] for name in sass.instances(kernel.name, counted))
        worst = next((lines[name] for name in sass.instances(kernel.name, lines)), ())
        kernels.append(replace(kernel, metrics=found.metrics if found else {}, lines=worst))
    return replace(profile, kernels=tuple(kernels))


def _ended(answer: dict[str, Any]) -> list[dict[str, Any]]:
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


def _threads(kernel: Kernel) -> int:
    product = 1
    for extent in kernel.block:
        product *= extent
    return product


def _total_ms(counted: dict[str, ncu.Counted]) -> float:
    return sum(one.nanoseconds for one in counted.values()) / 1e6


def counted_only(counted: dict[str, ncu.Counted]) -> tuple[Kernel, ...]:
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


def _of_the_code(code: sass.Static, time_ms: float) -> list[Kernel]:
    """Kernels of which only the machine code is known: one for each symbol, in equal parts of a call."""
    names = list(
        dict.fromkeys(facts["signature"] for variants in code.kernels.values() for facts in variants)
    )
    return [Kernel(name, 1e3 * time_ms / len(names), 1, 1 / len(names)) for name in names]


def _launches(counters: Counters) -> int:
    """How many ncu counts: so that a candidate of many kernels leaves room for what is beside it."""
    return ncu.MOST_LAUNCHES * (1 + len(counters.references))


def _here() -> str:
    return str(Path(__file__).resolve().parents[3])


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
