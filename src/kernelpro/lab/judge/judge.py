"""The parent: one warm judge for one task, a verdict for each candidate.

Before the first candidate, once: load the reference, derive tolerances from the float64 oracle, probe
whether the task can be scored, measure the floor, calibrate the baselines. Then for each candidate:

 1. tripwires (refused early), build in a cell without a GPU (cached, in parallel, see builds.py);
 2. a fresh cell: import, construct, parameters by name or by seed;
 3. verification: calls on all distributions in random order, each output against the oracle;
 4. timing: interleaved rounds against the anchor baseline, then bursts for short kernels, each output verified as well;
 5. shares of authored kernels, then the verdict: clocks compared, floor respected, interval decided;
 6. where it is asked for, energy (lab/energy), before the cell is closed.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from kernelpro.lab.energy.meter import Meter
from kernelpro.lab.judge import own_work, probes, tripwires
from kernelpro.lab.judge.tolerance import SAMPLES, Errors, Tolerance, first_wrong, measure
from kernelpro.lab.languages import detect
from kernelpro.lab.languages.machine_code import fingerprint
from kernelpro.lab.measure import environment, physics, timing
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.bursts import LONGEST_MS, Bursts, Slopes
from kernelpro.lab.measure.participant import TRIES, Participant, device_bytes_of_others
from kernelpro.lab.measure.race import Race
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.measure.timing import Rounds
from kernelpro.lab.sandbox import health
from kernelpro.lab.sandbox.answers import CandidateRejected
from kernelpro.lab.tasks.inputs import AS_GIVEN, DISTRIBUTIONS
from kernelpro.records import Candidate, Energy, Interval, Options, Status, Verdict

_PLAIN_SEEDS = 3
"""Verification calls on inputs as given; every other distribution gets one."""
_LOAD_SECONDS = 0.3
_BUSY = 0.2
"""Share of all cores. At a load of five on two cores an honest kernel seemed to hide 2.9 ms, a time slice of the scheduler's."""


class DuplicateMachineCode(Exception):
    """The candidate's machine code was judged before; the message is its fingerprint."""


class Judge:
    """Warm for one task on one device. Not thread-safe: timing is exclusive."""

    def __init__(self, bench: Bench, report: Callable[[str], None] = print):
        self.bench, self._report = bench, report
        self.notes: list[str] = []
        self.not_scorable: str | None = None
        self._farewell: threading.Thread | None = None
        self._code = ""
        self._silence = ""
        """Fingerprint of the candidate's machine code, once it is built."""
        self._given: str | None = None
        """How its parameters were given, once it is loaded."""
        self._prepared_in: dict[str, float] = {}
        self._baselines: Baselines | None = None
        self._meter: Meter | None = None

    @property
    def options(self) -> Options:
        return self.bench.options

    def prepare(self, timed: bool = True) -> None:
        """All that is done once for a task, on an open bench; if not `timed`, to know whether it can be scored.

        Bad input is raised.
        """
        bench, clock = self.bench, self.bench.preparation
        if timed:
            with clock("start baselines"):
                self._begin_baselines()
            self._race = Race(bench, self.baselines, self._check)
        with clock("tolerance"):
            self._report("deriving the tolerance")
            wanted = (
                DISTRIBUTIONS if timed else (AS_GIVEN,)
            )  # whether it can be scored is asked of these alone
            self.tolerance = Tolerance(bench.oracle, bench.precision, bench.new_seed(), wanted)
            self._questions = self._draw_questions()
        with clock("probe"):
            self._report("probing the task")
            seeds = [bench.new_seed() for _ in range(probes.SEEDS)]
            self.not_scorable = probes.probe(bench.oracle, self.tolerance, seeds, bench.work)
        if timed and self.not_scorable is None:
            self._calibrate()
        self._prepared_in = clock.seconds()

    @property
    def prepared_seconds(self) -> dict[str, float]:
        """By stage, and in `total`."""
        return self._prepared_in

    # --- preparation ---------------------------------------------------------------------------------

    def _draw_questions(self) -> list[tuple[int, str]]:
        """New ones, but for spikes: those are asked about from which the limit was derived (tolerance.py)."""
        names = [AS_GIVEN] * (_PLAIN_SEEDS - 1) + list(self.tolerance.limits)
        return [(self.tolerance.seed if name in SAMPLES else self.bench.new_seed(), name) for name in names]

    def _begin_baselines(self) -> None:
        """A cell with the reference; it compiles while the parent derives the tolerance."""
        bench, options = self.bench, self.options
        wanted = [name for name in options.baselines if bench.target == "cuda" or name != "eager_tf32"]
        if not any(name.startswith("eager") for name in wanted):
            wanted.insert(0, "eager_fp32")
        self._baselines = Baselines(
            bench.admit_reference(wanted),
            wanted,
            bench.expected,
            bench.inputs,
            options.build_timeout,
            options.call_timeout,
            self.notes,
        )
        self._baselines.begin(bench.start_request(), bench.task, bench.seed)

    @property
    def baselines(self) -> Baselines:
        assert self._baselines, "prepare comes first"
        return self._baselines

    @property
    def seeds(self) -> dict[str, str]:
        """What compilers wrote for baselines, as candidates."""
        return self._baselines.seeds if self._baselines else {}

    def _calibrate(self) -> None:
        with self.bench.preparation("compile baselines"):
            self._report("waiting for the baselines to compile")
            self.baselines.warm_up(self.bench.new_seed())
        with self.bench.preparation("calibrate"):
            self._calibrate_enough()
        # what a baseline can do is no better than perfect: where it is below the floor, a ceiling was measured too low
        self.bench.floor_ms = min(
            self.bench.floor_ms, *(self.baselines.time(name).value for name in self.baselines.variants)
        )

    def _calibrate_enough(self) -> None:
        """As many rounds of the baselines as the present effort asks for; those that are there count."""
        missing = self._race.count() - self.baselines.calibrated
        if missing > 0:
            self._report("calibrating the baselines")
            with self.bench.quiet():
                self.baselines.calibrate(self._race.draw(missing))

    def report_to(self, report: Callable[[str], None]) -> None:
        self._report = report

    # --- judging -------------------------------------------------------------------------------------

    def judge(self, candidate: Candidate, known: Collection[str] = ()) -> Verdict:
        """The verdict on one candidate. Never raises for what the candidate does; `Twin` where `known` has its machine code."""
        clock, self._code, self._silence, self._given = Stopwatch(), "", "", None
        if self.not_scorable:
            return self._verdict(candidate, Status.NOT_SCORABLE, self.not_scorable, clock)
        try:
            return self._judge(candidate, clock, known)
        except CandidateRejected as error:
            by_seed = self._given == "by seed" and error.status is Status.WRONG
            hint = (
                "; its parameters were built by seed, since names or shapes differ from the reference's"
                if by_seed
                else ""
            )
            return self._verdict(candidate, error.status, f"{error.reason}{hint}", clock)
        except torch.OutOfMemoryError:  # here, although there was enough to prepare the task
            return self._verdict(
                candidate,
                Status.CRASHED,
                "it left too little of the device's memory to check its answers",
                clock,
            )
        finally:
            health.check(self.bench.target)

    def _judge(self, candidate: Candidate, clock: Stopwatch, known: Collection[str]) -> Verdict:
        self._inspect(candidate)
        self._calibrate_enough()
        self._report("building")
        with clock("build"):
            built = self.bench.builds.get(candidate, self.bench.target, self.options, self.bench.task)
            self._code = fingerprint(candidate.source, built)
        if self._code and self._code in known:
            raise DuplicateMachineCode(self._code)
        self._report("loading")
        with clock("start"):
            participant = self.bench.admit()
            self._wait_for_farewell()
        try:
            before = self._used(participant)
            with clock("load"):
                self._given = self.bench.load(participant, candidate)
            with clock("verify"):
                errors, excess = self._verify(participant)
                peak = self._used(participant) - before
            participant.cell.leave_alone()
            with clock("time"), self.bench.quiet():
                rounds, errors, excess = self._race.run(
                    participant, errors, excess, lambda: self._report("timing")
                )
            peak = max(peak, self._used(participant) - before - participant.kept * self.bench.expected.nbytes)
            self._require_rest(participant, rounds)
            with clock("bursts"):
                slopes = self._bursts(participant, rounds)
            with clock("profile"):
                samples = rounds.samples["candidate"]
                share = own_work.share(
                    participant, candidate.source, self.bench.target, samples, self.options.call_timeout
                )
            verdict = self._decide(candidate, clock, errors, excess, rounds, slopes, max(0, peak), share)
            if self.options.energy:
                with clock("energy"):
                    energy = self._energy(participant, verdict)
                verdict = replace(
                    verdict, energy=energy, measurement=verdict.measurement | {"seconds": clock.seconds()}
                )
        except BaseException:  # also Ctrl-C: no child is left behind
            participant.close()
            raise
        self._farewell = participant.close_in_background()
        if slowed := self._race.slowed(rounds):
            self._wait_for_farewell()
            self._race.time_alone(slowed, rounds)
            final = self._decide(candidate, clock, errors, excess, rounds, slopes, max(0, peak), share)
            verdict = replace(final, energy=verdict.energy)
        return verdict

    def _used(self, participant: Participant) -> int:
        return device_bytes_of_others() if self.bench.target == "cuda" else participant.cell.peak_bytes()

    def _wait_for_farewell(self) -> None:
        """Nothing of the last candidate is alive when this one is measured."""
        if self._farewell:
            self._farewell.join()
        self._farewell = None

    def _inspect(self, candidate: Candidate) -> None:
        try:
            ast.parse(candidate.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
            what = str(getattr(error, "msg", error)) or "nested too deeply"
            raise CandidateRejected(Status.BUILD_FAILED, f"syntax error{line}: {what}") from None
        if reason := tripwires.check(candidate.source, self.options.allow):
            raise CandidateRejected(Status.REFUSED, reason)

    def _verify(self, participant: Participant) -> tuple[Errors, float]:
        """All distributions in random order; returns the worst error and its share of the limit.

        On a GPU the last calls show whether they can be launched ahead: by then nothing is loaded or tuned any more.
        """
        worst, excess, launched = Errors(0.0, 0.0), 0.0, False
        for index, (seed, distribution) in enumerate(
            self.bench.secret.sample(self._questions, len(self._questions))
        ):
            self._report("verifying")
            inputs = self.bench.oracle.inputs(seed, distribution)[1]
            participant.prepare(self.options.call_timeout, tidy=index == 0)
            seconds = self.options.build_timeout if index == 0 else self.options.call_timeout
            ahead = participant.ahead and index >= len(self._questions) - TRIES
            answer = participant.call(inputs, self.bench.expected, seconds, sealed=ahead, ahead=ahead)
            launched |= ahead and participant.launched
            try:
                errors, ratio = self._check(answer.outputs, seed, distribution)
            except CandidateRejected as error:
                hint = "; it was launched before its inputs were there: does a stream of its own not wait for the current one?"
                raise CandidateRejected(
                    error.status, f"{error.reason}{hint if ahead and participant.launched else ''}"
                ) from None
            participant.look_again(answer)
            worst, excess = worst.worst(errors), max(excess, ratio)
        participant.ahead = launched
        return worst, excess

    def _check(self, outputs: list[torch.Tensor], seed: int, distribution: str) -> tuple[Errors, float]:
        limit = self.tolerance.limits[distribution]
        truth = self.bench.oracle.truth(seed, distribution)
        errors = measure(outputs, truth)
        excess = limit.excess(errors)
        if excess > 1:
            overall = f"relative error {errors.norm:.2e} (limit {limit.norm:.2e})"
            largest = f"largest {errors.element:.2e} (limit {limit.element:.2e})"
            first = first_wrong(outputs, truth, limit.element) or first_wrong(outputs, truth, limit.norm)
            where = "; ".join(filter(None, (measure(outputs, truth, located=True).where, first)))
            raise CandidateRejected(Status.WRONG, f"on inputs {distribution}: {overall}, {largest}; {where}")
        return errors, excess

    def _is_short(self, rounds: Rounds) -> bool:
        return self.bench.target == "cuda" and float(rounds.own("candidate").median()) < LONGEST_MS

    def _bursts(self, participant: Participant, rounds: Rounds) -> Slopes | None:
        """Milliseconds a call in bursts, for kernels too short for the parent's clock."""
        if not self._is_short(rounds):
            return None

        def check(outputs: list[torch.Tensor], seed: int) -> None:
            self._check(outputs, seed, AS_GIVEN)

        seeds, seconds, effort = self._race.for_bursts(), self.options.call_timeout, self.options.effort
        bursts = Bursts(
            participant,
            self.bench.expected,
            self.bench.inputs,
            check,
            seeds,
            seconds,
            effort,
            self._race.ahead,
        )
        plain = torch.tensor([sample.wall for sample in rounds.of("candidate", "single")])
        own = float(rounds.own("candidate").median())
        found = bursts.slopes(
            self.bench.most_calls, self.bench.ceilings.bandwidth, float(plain.median()), own
        )
        self._silence = bursts.silence
        return found

    def _energy(self, participant: Participant, verdict: Verdict) -> Energy:
        wanted = self.options.energy_against if self.options.energy_against in self.baselines.variants else ""
        if self._meter and wanted not in ("", self._meter.anchor):
            self._meter.close()
            self._meter = None
        if self._meter is None:
            anchor = wanted or self.baselines.anchor
            own = float(self.baselines.rounds.own(anchor, "single").median())
            self._meter = Meter(self.bench, anchor, own, lambda stage: self._report(stage))

        def check(outputs: list[torch.Tensor], seed: int) -> None:
            self._check(outputs, seed, AS_GIVEN)

        own = verdict.measurement["own_ms"]["single"]["candidate"]
        return self._meter.measure(participant, own, self._race.seeds, check)

    def _decide(
        self,
        candidate: Candidate,
        clock: Stopwatch,
        errors: Errors,
        excess: float,
        rounds: Rounds,
        slopes: Slopes | None,
        peak: int,
        share: float | None,
    ) -> Verdict:
        base = self.baselines
        timed_calls = [*rounds.samples["candidate"], *rounds.alone.get("candidate", [])]
        ms, host, slack = (slopes.ms, slopes.host_ms, slopes.slack_ms) if slopes else (None, 0.0, 0.0)
        corrections, short = base.excess_protocol_ms(self._race.ahead), self._is_short(rounds)
        clocks = timing.compare_clocks(
            rounds, "candidate", base.anchor, self.bench.target, corrections, ms, host, slack, short
        )
        slow_to_hear = (
            bool(clocks.lie) and self.bench.target == "cpu" and (clocks.slight or self._others_are_busy())
        )
        late = slow_to_hear or clocks.unsure
        if clocks.lie and not slow_to_hear:
            raise CandidateRejected(Status.CHEATING, clocks.lie)
        own = timing.comparable(rounds, base.anchor, "candidate")
        least = physics.impossible_ms(
            self.bench.work, self.bench.ceilings, self.bench.unit, self.bench.target
        )
        if clocks.own_ms < least:
            reason = f"takes {clocks.own_ms:.4f} ms, but moving the data alone takes {least:.4f} ms here"
            raise CandidateRejected(Status.REFUSED, f"{reason}: a cheat, or our floor is wrong")
        self._require_authored(candidate, share)
        times = {"candidate": own} | {name: base.time(name) for name in base.variants}
        charge = clocks.most_hidden_ms if late else 0.0
        times["candidate"] = Interval(own.value + charge, own.low, own.high + charge)
        speedup = {name: self._speedup(name, rounds, clocks, charge) for name in base.variants}
        best = base.anchor
        faster: Any = timing.decide(speedup[best])
        measurement = {
            "rounds": len(rounds.samples["candidate"]),
            "discarded_rounds": rounds.discarded,
            "against": best,
            "own_ms": {
                kind: {name: float(rounds.own(name, kind).median()) for name in rounds.samples}
                for kind in rounds.kinds
            },
            "filling_ms": {name: rounds.filling(name) for name in rounds.samples},
            "hidden_ms": clocks.hidden.to_json(),
            "hidden_sealed_ms": clocks.hidden_sealed.to_json() if clocks.hidden_sealed else None,
            "burst_ms": clocks.slope.to_json() if clocks.slope else None,
            "host_ms": host,
            "wall_ms": timing.median_interval(
                torch.tensor([s.wall for s in rounds.of("candidate", "single")], dtype=torch.float64)
            ).to_json(),
            "a_a": base.control().to_json(),
            "verified_calls": len(self._questions) + len(timed_calls) + rounds.discarded,
            "distributions": list(self.tolerance.limits),
        }
        if self.bench.target == "cuda":
            measurement["sensors"] = environment.sensors().read()
        value = speedup[best].value
        bare = "; none of it in kernels of its own" if share is not None and share < own_work.DECOY else ""
        word = {"yes": "faster than", "no": "slower than", "unclear": "not clearly different from"}[faster]
        return self._verdict(
            candidate,
            Status.PASSED,
            f"correct; {word} {best} ({value:.2f}x){bare}",
            clock,
            error=errors.norm,
            error_of_limit=excess,
            tolerance=self.tolerance.limits[AS_GIVEN].norm,
            times=times,
            speedup=speedup,
            faster=faster,
            authored_share=share,
            peak_bytes=peak,
            notes=(*self._standing_notes(), *self._notes(clocks, rounds, late)),
            measurement=measurement,
        )

    def _speedup(self, name: str, rounds: Rounds, clocks: timing.Clocks, charge_ms: float) -> Interval:
        direct = name in rounds.samples
        timed = name if direct else self.baselines.anchor
        links = {} if direct else {kind: self.baselines.link(name, kind) for kind in rounds.kinds}
        return timing.speedup(rounds, timed, "candidate", links, clocks, charge_ms)

    def _require_rest(self, participant: Participant, rounds: Rounds) -> None:
        """A child that wakes itself has a head start."""
        ran = float(torch.tensor(participant.ran_ms).median())
        if ran > timing.SLACK_SHARE * float(rounds.own("candidate").median()):
            raise CandidateRejected(
                Status.CHEATING, f"it runs for {ran:.3f} ms while it is stopped before a call"
            )

    def _require_authored(self, candidate: Candidate, share: float | None) -> None:
        if own_work.is_decoy(candidate.source, share):
            reason = (
                f"brings kernels of its own, but they do {share:.2%} of the work" if share is not None else ""
            )
            raise CandidateRejected(Status.CHEATING, f"{reason}: a decoy")
        if self.options.min_authored and (share or 0.0) < self.options.min_authored:
            raise CandidateRejected(
                Status.REFUSED,
                f"{share or 0.0:.0%} of the time is in kernels of its own; {self.options.min_authored:.0%} are required",
            )

    def _others_are_busy(self) -> bool:
        """Whether other work keeps this machine busy, seen while all our own children stand still."""
        self._wait_for_farewell()
        with self.bench.quiet():
            return environment.load(_LOAD_SECONDS) > _BUSY

    def _standing_notes(self) -> Iterator[str]:
        """What there is to say whatever the verdict."""
        yield from self.notes
        if self._given == "by seed":
            yield "parameters were built under the reference's seed: names or shapes differ from the reference's"
        if not self.bench.oracle.exact:
            yield "the oracle is not float64: the reference does not run in it"
        if self.bench.nursery.level != "namespaces":
            yield f"weaker sandbox ({self.bench.nursery.level}): {self.bench.nursery.why_not_better or 'as asked for'}"

    def _notes(self, clocks: timing.Clocks, rounds: Rounds, late: bool) -> Iterator[str]:
        if late:
            busy = "threads of its own that go on spinning" if clocks.slight else "other work"
            why = (
                "in many calls its clock and the judge's disagree"
                if clocks.unsure
                else f"{busy} kept this machine busy"
            )
            yield f"{why}: {clocks.most_hidden_ms:.4f} ms that its clock did not show count as its own"
        if len(rounds.samples["candidate"]) + rounds.discarded < self._race.count():
            yield "timing stopped early: slower than the limit"
        if not self.tolerance.limits[AS_GIVEN].separates:
            yield "this task does not tell the allowed precision from the next lower one"
        if clocks.widest_ms > timing.RESOLVED * clocks.own_ms:
            silent = f" ({self._silence})" if self._silence else ""
            yield f"too short for the parent's clock to resolve{silent}: the interval is widened by what may be hidden"
        yield from self._notes_on_hosts(rounds)
        for name, why in self.tolerance.dropped.items():
            yield f"inputs {name} not used: {why}"

    def _notes_on_hosts(self, rounds: Rounds) -> Iterator[str]:
        base = self.baselines
        if not base.seals:
            return
        if base.anchor not in base.ahead:
            yield f"{base.anchor} cannot be launched ahead of its inputs: what hosts take is part of all times"
        elif not self._race.ahead:
            why = (
                "holds up the writing of its inputs when launched ahead"
                if self._race.again
                else "cannot be launched ahead of its inputs"
            )
            yield f"it {why}: it is held against the baseline's time on the device alone"
        single, queued = (
            float(rounds.log_ratio(base.anchor, "candidate", kind).median().exp()) for kind in rounds.kinds
        )
        if self._race.ahead and single < timing.ALIKE * queued:
            yield f"its host is slow to launch it: {single:.2f}x in single calls, {queued:.2f}x on the device alone"

    def _verdict(
        self, candidate: Candidate, status: Status, reason: str, clock: Stopwatch, **fields: Any
    ) -> Verdict:
        seconds = {"seconds": clock.seconds(), "preparation_seconds": self._prepared_in}
        measurement = fields.pop("measurement", {}) | seconds
        if self._code:
            measurement["machine_code"] = self._code
        return Verdict(
            candidate=candidate.name,
            status=status,
            reason=reason,
            floor_ms=self.bench.floor_ms,
            sandbox=self.bench.nursery.level,
            language=detect(candidate.source).name,
            measurement=measurement,
            environment=environment.snapshot(self.bench.target)
            | {"precision": self.bench.precision, "mode": self.bench.task.mode},
            task=self.bench.task.name,
            candidate_id=candidate.id,
            **{"parameters": self._given, "notes": tuple(self._standing_notes())} | fields,
        )

    def close(self) -> None:
        self._wait_for_farewell()
        if self._meter:
            self._meter.close()
        if self._baselines:
            self._baselines.close()
        self.bench.close()
