"""The judge's procedure: one long-lived judge per task, one verdict per candidate.

Before the first candidate, once: load the reference, derive tolerances from the float64 oracle, probe whether
the task can be scored, measure the floor, calibrate the baselines. Then for each candidate:

 1. tripwires, which reject early; build in a sandbox without a GPU (cached, in parallel: sandbox/builds.py);
 2. a fresh sandbox: import, construct, parameters by name or by seed;
 3. verification: calls on all distributions in random order, each output against the oracle;
 4. timing: interleaved rounds against the anchor, bursts for short kernels; all outputs are verified, and so
    are further calls on all distributions between the rounds;
 5. the share of the candidate's own kernels, the decision (decision.py, clock_policy.py), its description;
 6. energy (lab/energy), if requested, before the sandbox is closed;
 7. in another sandbox: whether it stays inside its buffers (memory_safety.py), and whether it is right for
    another batch size (unseen_shape.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kernelpro.lab.energy.meter import EnergyMeter
from kernelpro.lab.judge import memory_safety, own_work, probes, tripwires, wording
from kernelpro.lab.judge.baseline_startup import BaselineStartup, start_baselines
from kernelpro.lab.judge.candidate_state import CandidateState
from kernelpro.lab.judge.decision import Facts, decide
from kernelpro.lab.judge.memory_safety import GuardedCalls
from kernelpro.lab.judge.memory_use import MemoryUse
from kernelpro.lab.judge.tolerance import TOLERANCE_SAMPLES, Tolerance
from kernelpro.lab.judge.unseen_shape import UnseenCall, prepare_unseen_call
from kernelpro.lab.languages import detect
from kernelpro.lab.measure import environment
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.clocks import SLACK_SHARE
from kernelpro.lab.measure.cuda_participant import PRELAUNCH_TRIES, device_bytes_outside_torch
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.round_runner import Accuracy, RoundRunner
from kernelpro.lab.measure.rounds import Rounds
from kernelpro.lab.sandbox import health
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.tasks.inputs import AS_GIVEN, DISTRIBUTIONS
from kernelpro.records import Candidate, Energy, Measurement, Options, Status, Verdict

_AS_GIVEN_CALLS = 3
"""Verification calls on inputs as given; every other distribution gets one."""
_LARGE_BYTES = 1 << 30
"""If a call moves more, there is one further call on each distribution between the rounds instead of two:
inputs and expected outputs of gigabytes take long."""
_LOAD_SAMPLE_SECONDS = 0.3
_BUSY_SHARE = 0.2
"""Other work keeps the machine busy if it uses more than this share of all cores. At a load of five on two
cores an honest kernel seemed to hide 2.9 ms, a scheduler time slice."""


class DuplicateMachineCode(Exception):
    """The candidate's machine code was judged before; the message is its fingerprint."""


class Judge:
    """Judges the candidates of one task on one device. Not thread-safe: timing is exclusive."""

    def __init__(self, bench: Bench, report: Callable[[str], None] = print):
        self.bench, self._report = bench, report
        self.notes: list[str] = []
        self.not_scorable: str | None = None
        """Why the task cannot be scored; None if it can."""
        self._teardown_threads: list[threading.Thread] = []
        self._preparation_seconds: dict[str, float] = {}
        self._startup: BaselineStartup | None = None
        self._baselines: Baselines | None = None
        """None until they are calibrated."""
        self._energy_meter: EnergyMeter | None = None
        self._unseen: UnseenCall | None = None

    @property
    def options(self) -> Options:
        """The options of the current job."""
        return self.bench.options

    @property
    def preparation_seconds(self) -> dict[str, float]:
        """Seconds of each stage of the preparation, and in `total`."""
        return self._preparation_seconds

    @property
    def baselines(self) -> Baselines:
        """The baselines, after `calibrate`."""
        assert self._baselines, "calibrate comes first"
        return self._baselines

    @property
    def seeds(self) -> dict[str, str]:
        """The compilers' code for baselines as candidates, by baseline."""
        return self._baselines.seeds if self._baselines else {}

    def report_to(self, report: Callable[[str], None]) -> None:
        """Send progress to `report` from now on."""
        self._report = report

    # --- preparation ---------------------------------------------------------------------------------

    def prepare(self, timed: bool = True) -> None:
        """Do everything that is needed once per task, on an open bench, except `calibrate`. Raises BadInput.

        Where processes take turns in memory, this also calibrates. If not `timed`, only determine whether the
        task can be scored.
        """
        bench, clock = self.bench, self.bench.preparation
        at_once = timed and not bench.plan.layout.takes_turns
        if at_once:
            self._startup = start_baselines(bench, self.notes)
            bench.start_spares()
        if timed:
            with clock("guards"):
                memory_safety.prepare(bench.target)
        with clock("tolerance"):
            self._report("deriving the tolerance")
            distributions = DISTRIBUTIONS if timed else (AS_GIVEN,)  # probes use only inputs as given
            self.tolerance = Tolerance(bench.oracle, bench.precision, bench.new_seed(), distributions)
            self._verification_inputs = self._draw_verification_inputs()
            self.as_given_seed = next(s for s, name in self._verification_inputs if name == AS_GIVEN)
            if timed:
                self._unseen = prepare_unseen_call(bench, bench.new_seed(), self.tolerance)
        with clock("probe"):
            self._report("probing the task")
            seeds = [bench.new_seed() for _ in range(probes.PROBE_SEEDS)]
            self.not_scorable = probes.probe(bench.oracle, self.tolerance, seeds, bench.work)
            self.notes += wording.fixed_input_notes(probes.fixed_inputs(bench.oracle, seeds))
        bench.oracle.keep_one_model()
        if timed and self.not_scorable is None and not at_once:
            bench.free_own_memory()
            self._startup = start_baselines(bench, self.notes)
            self.calibrate()
        self._preparation_seconds = clock.seconds()

    def _draw_verification_inputs(self) -> list[tuple[int, str]]:
        """Seeds and distributions. Distributions whose limit depends on the draw (TOLERANCE_SAMPLES) get the
        seed from which the limit was derived; others get new seeds."""
        names = [AS_GIVEN] * (_AS_GIVEN_CALLS - 1) + list(self.tolerance.limits)
        return [
            (self.tolerance.seed if name in TOLERANCE_SAMPLES else self.bench.new_seed(), name)
            for name in names
        ]

    def calibrate(self, candidate: Candidate | None = None) -> None:
        """Time the baselines, once per task and effort. Raises BadInput.

        `candidate` is called once if the compilers take long, so that a candidate that never ends is rejected
        before they finish.
        """
        if self._baselines is None:
            self._calibrate(candidate)
            self._preparation_seconds = self.bench.preparation.seconds()
        else:
            self._calibrate_enough()

    def _calibrate(self, candidate: Candidate | None) -> None:
        bench, clock, startup = self.bench, self.bench.preparation, self._startup
        assert startup, "prepare comes first"
        with clock("compile baselines"):
            self._report("waiting for the baselines to compile")
            if candidate and startup.will_take_long():
                self._report("trying a call while the baselines compile")
                startup.try_meanwhile(candidate)
            startup.wait()
        with clock("tune baselines"):
            baselines = startup.finish()
            baselines.warm_up(bench.new_seed())
        parts = 1 if bench.work.total_bytes > _LARGE_BYTES else 2
        unusual = self.tolerance.inputs_between_rounds(bench.new_seed, parts)
        self._baselines, self._runner = baselines, RoundRunner(bench, baselines, self._check, unusual)
        with clock("calibrate"):
            self._calibrate_enough()
        # no baseline can beat the floor: if one does, a ceiling was measured too low
        times = (baselines.time_ms(name).value for name in baselines.variants)
        bench.floor_ms = min(bench.floor_ms, *times)

    def _calibrate_enough(self) -> None:
        """Run the calibration rounds that the current effort still needs."""
        missing = self._runner.round_count() - self.baselines.calibrated_rounds
        if missing > 0:
            self._report("calibrating the baselines")
            with self.bench.quiet():
                self.baselines.calibrate(self._runner.draw_seeds(missing))

    # --- judging -------------------------------------------------------------------------------------

    def judge(self, candidate: Candidate, known_machine_code: Collection[str] = ()) -> Verdict:
        """The verdict on one candidate.

        Raises DuplicateMachineCode if the fingerprint of its machine code is in `known_machine_code`,
        CandidateNeedsMemory if another memory plan suits it better, and torch.OutOfMemoryError if the plan
        was wrong. Nothing that the candidate does raises anything else.
        """
        state = CandidateState(candidate)
        if self.not_scorable:
            return self._verdict(state, Status.NOT_SCORABLE, self.not_scorable)
        try:
            return self._judge(state, known_machine_code)
        except CandidateRejected as error:
            by_seed = state.parameters == "by seed" and error.status is Status.WRONG
            hint = "; it keeps its constructor's parameters: names or shapes differ from the reference's"
            return self._verdict(state, error.status, f"{error.reason}{hint if by_seed else ''}")
        finally:
            health.check_device(self.bench.target)

    def _judge(self, state: CandidateState, known_machine_code: Collection[str]) -> Verdict:
        candidate, clock = state.candidate, state.clock
        tripwires.inspect(candidate.source, self.options.disabled_tripwires)
        self._report("building")
        with clock("build"):
            state.set_build(
                self.bench.builds.get(candidate, self.bench.target, self.options, self.bench.task)
            )
        if state.machine_code and state.machine_code in known_machine_code:
            raise DuplicateMachineCode(state.machine_code)
        self.calibrate(candidate)
        self._report("loading")
        guarded = GuardedCalls(self.bench, self._verification_inputs) if self.options.guards else None
        try:
            verdict = self._measure_with_right_values(state, guarded)
            return self._with_memory_safety(state, verdict, guarded) if guarded else verdict
        except CandidateRejected as error:
            raise (guarded.explain(error, candidate, self._check) if guarded else error) from None
        finally:
            if guarded:
                guarded.close(self.close_in_background)

    def _measure_with_right_values(self, state: CandidateState, guarded: GuardedCalls | None) -> Verdict:
        """As `_measure_and_decide`, with a second try for a candidate that is wrong.

        The first try overwrites its parameters with the reference's values. That undoes changes that its
        constructor made on purpose, such as folding a scale into the weights. The second try keeps the values
        that the constructor made from the reference's seed.
        """
        try:
            return self._measure_and_decide(state, guarded)
        except CandidateRejected as error:
            # no seed reproduces the weights of a live module
            by_seed = self.bench.task.form == "kernelbench"
            if error.status is not Status.WRONG or not (by_seed and state.overwritten):
                raise
            source, state.keep_own_values = state.parameters, True
            try:
                return self._measure_and_decide(state, guarded)
            except CandidateRejected:
                state.parameters = source
                raise error from None

    def _measure_and_decide(self, state: CandidateState, guarded: GuardedCalls | None) -> Verdict:
        """The verdict before guarded calls; raises CandidateRejected if the candidate does not pass."""
        clock = state.clock
        with clock("start"):
            participant = self.bench.start_candidate()
            self.wait_for_teardown()
            if guarded:
                guarded.wait_until_started()
        memory = MemoryUse(self.bench.plan, lambda: self._memory_in_use(participant))
        try:
            with memory.blaming():
                facts = self._measure(participant, state, memory)
            verdict = self._decide(state, facts)
            if self.options.energy:
                with clock("energy"):
                    energy = self._measure_energy(participant, facts.rounds)
                measurement = replace(verdict.measurement, seconds=clock.seconds())
                verdict = replace(verdict, energy=energy, measurement=measurement)
        except BaseException:  # Ctrl-C too: no child is left behind
            participant.close()
            raise
        self.close_in_background(participant)
        if slowed := self._runner.slowed_baselines(facts.rounds):
            self.wait_for_teardown()
            self._runner.time_baselines_alone(slowed, facts.rounds)
            verdict = replace(self._decide(state, facts), energy=verdict.energy)
        return verdict

    def _with_memory_safety(self, state: CandidateState, verdict: Verdict, guarded: GuardedCalls) -> Verdict:
        """The verdict with the results of guarded calls; raises CandidateRejected if the candidate leaves
        its buffers."""
        self._report("checking for writes out of bounds")
        if self.bench.plan.layout.takes_turns or not self.bench.has_room_for_a_call(verdict.peak_bytes or 0):
            self.wait_for_teardown()  # its memory is needed
            self.baselines.release_memory()
            self.bench.free_own_memory()
        with state.clock("guards"):
            seconds = state.seconds_before_timing()
            note = guarded.check(state.candidate, self._check, state.keep_own_values, seconds)
            unseen = guarded.try_unseen(self._unseen)
        notes = [*verdict.notes, *([note] if note else [])]
        if self.options.effort == "full":
            with state.clock("sanitizer"):
                notes += memory_safety.sanitize(self.bench, state.candidate, self._report)
        measurement = replace(verdict.measurement, seconds=state.clock.seconds())
        return replace(verdict, measurement=measurement, notes=tuple(notes), unseen_shape=unseen)

    def close_in_background(self, participant: Participant) -> None:
        """End a process while the next one loads; `wait_for_teardown` waits for it."""
        self._teardown_threads.append(participant.close_in_background())

    def _measure(self, participant: Participant, state: CandidateState, memory: MemoryUse) -> Facts:
        """Load, verify and time the candidate; raises CandidateRejected if it fails."""
        clock, spec, runner = state.clock, self.bench.output_spec, self._runner
        with clock("load"):
            loaded = self.bench.load_candidate(participant, state.candidate, state.keep_own_values)
            state.parameters, state.overwritten = loaded.source, loaded.overwritten
        with clock("verify"):
            accuracy = self._verify(participant, state)
            state.compile_seconds = participant.process.compile_seconds
            memory.record()
        participant.process.kill_descendants()
        with clock("time"), self.bench.quiet():
            rounds, accuracy = runner.run(participant, accuracy, lambda: self._report("timing"))
        longest = max(sample.calls for sample in rounds.samples["candidate"])
        memory.record((participant.retained_outputs + longest - 1) * spec.nbytes)
        self._require_no_early_work(participant, rounds)
        with clock("profile"):
            samples, seconds = rounds.samples["candidate"], self.options.call_timeout
            share = own_work.own_share(
                participant, state.candidate.source, self.bench.target, samples, seconds
            )
        samples = rounds.samples["candidate"] + rounds.solo.get("candidate", [])
        timed_calls = sum(sample.calls for sample in samples)
        return Facts(
            state.candidate.source,
            state.build_errors,
            accuracy,
            rounds,
            runner.burst_skip_reason,
            memory.peak_bytes,
            share,
            runner.prelaunch,
            runner.retried_without_prelaunch,
            len(self._verification_inputs) + runner.unusual_calls + timed_calls + rounds.discarded,
        )

    def _memory_in_use(self, participant: Participant) -> int:
        is_cuda = self.bench.target == "cuda"
        return device_bytes_outside_torch() if is_cuda else participant.process.peak_bytes()

    def wait_for_teardown(self) -> None:
        """Wait until the last candidate's processes have ended: they would disturb the next timing."""
        while self._teardown_threads:
            self._teardown_threads.pop().join()

    def _verify(self, participant: Participant, state: CandidateState) -> Accuracy:
        """Verify calls on all distributions in random order.

        On a GPU, the last of these calls also determine whether calls can be prelaunched, because by then the
        candidate no longer loads or tunes anything.
        """
        accuracy, prelaunched = Accuracy(), False
        order = self.bench.secret.sample(self._verification_inputs, len(self._verification_inputs))
        for index, (seed, distribution) in enumerate(order):
            self._report("verifying")
            inputs = self.bench.oracle.inputs(seed, distribution)[1]
            participant.prepare(self.options.call_timeout, collect=index == 0)
            seconds, spec = self.options.call_timeout, self.bench.output_spec
            prelaunch = participant.can_prelaunch and index >= len(order) - PRELAUNCH_TRIES
            # the first call may compile and tune
            with participant.may_compile(self.options.build_timeout if index == 0 else None):
                result = participant.call(inputs, spec, seconds, prelaunch, prelaunch)
            state.restrided = spec.restrided(result.outputs)
            this_prelaunched = prelaunch and participant.last_prelaunched
            prelaunched |= this_prelaunched
            early = self.bench.plan.layout.frees_before_check
            if early:
                participant.check_output_unchanged(result)
            try:
                accuracy = accuracy.combine(self._check(result.outputs, seed, distribution))
            except CandidateRejected as error:
                hint = (
                    "; this call was launched before its inputs were written: "
                    "if the kernel uses a stream of its own, that stream must wait for the current one"
                )
                raise CandidateRejected(
                    error.status, f"{error.reason}{hint if this_prelaunched else ''}"
                ) from None
            if not early:
                participant.check_output_unchanged(result)
            del inputs, result  # frees memory for the next ones
        participant.can_prelaunch = prelaunched
        return accuracy

    def _check(self, outputs: list[torch.Tensor], seed: int, distribution: str) -> Accuracy:
        limit, oracle = self.tolerance.limits[distribution], self.bench.oracle
        if self.bench.plan.layout.frees_before_check:
            self.bench.turns.take(None)
        truth = oracle.expected(seed, distribution)
        inputs = partial(oracle.inputs, seed, distribution)
        errors = self.tolerance.measure(outputs, truth, inputs, distribution)
        if (share := limit.share_used(errors)) > 1:
            what = wording.wrong_output(outputs, truth, errors, limit)
            raise CandidateRejected(Status.WRONG, f"on {wording.describe_inputs(distribution)}: {what}")
        return Accuracy(errors, share)

    def check_as_given(self, outputs: list[torch.Tensor], seed: int) -> None:
        """Raise CandidateRejected if outputs are wrong for inputs as given."""
        self._check(outputs, seed, AS_GIVEN)

    def _require_no_early_work(self, participant: Participant, rounds: Rounds) -> None:
        """Reject a child that wakes itself up while it is stopped, which gives it a head start."""
        if not participant.cpu_ms_while_stopped:
            return
        cpu_ms = float(torch.tensor(participant.cpu_ms_while_stopped).median())
        if cpu_ms > SLACK_SHARE * rounds.median_ms("candidate"):
            raise CandidateRejected(
                Status.CHEATING, f"it used the CPU for {cpu_ms:.3f} ms before a call, while it was stopped"
            )

    def _measure_energy(self, participant: Participant, rounds: Rounds) -> Energy:
        requested = self.options.energy_baseline
        anchor = requested if requested in self.baselines.variants else ""
        if self._energy_meter and anchor not in ("", self._energy_meter.baseline):
            self._energy_meter.close()
            self._energy_meter = None
        if self._energy_meter is None:
            anchor = anchor or self.baselines.anchor
            anchor_ms = self.baselines.rounds.median_ms(anchor, "single")
            self._energy_meter = EnergyMeter(self.bench, anchor, anchor_ms, lambda stage: self._report(stage))
        own_ms = rounds.median_ms("candidate", "single")
        return self._energy_meter.measure(participant, own_ms, self._runner.seeds, self.check_as_given)

    # --- deciding ------------------------------------------------------------------------------------

    def _decide(self, state: CandidateState, facts: Facts) -> Verdict:
        """The verdict that follows from the facts; raises CandidateRejected if the candidate fails."""
        decision = decide(facts, self.bench, self.baselines, self._others_are_busy)
        planned = self._runner.round_count()
        notes = wording.notes(decision, facts, self.tolerance, self.baselines, planned)
        return self._verdict(
            state,
            Status.PASSED,
            wording.reason(decision, facts),
            wording.measurement(decision, facts, self.tolerance, self.baselines, self.bench.target),
            error=facts.accuracy.errors.norm,
            error_of_limit=facts.accuracy.limit_share,
            tolerance=self.tolerance.limits[AS_GIVEN].norm,
            times=decision.times,
            speedup=decision.speedup,
            shapes=(decision.shape_times(self.bench),),
            faster=decision.faster,
            own_share=facts.own_share,
            peak_bytes=facts.peak_bytes,
            notes=(*self._standing_notes(state), *notes),
        )

    def _others_are_busy(self) -> bool:
        """Whether other work keeps this machine busy, measured while our own children are stopped."""
        self.wait_for_teardown()
        with self.bench.quiet():
            return environment.cpu_load(_LOAD_SAMPLE_SECONDS) > _BUSY_SHARE

    def _standing_notes(self, state: CandidateState) -> tuple[str, ...]:
        return tuple(wording.standing_notes(self.bench, self.notes, state))

    def _verdict(
        self,
        state: CandidateState,
        status: Status,
        reason: str,
        measurement: Measurement = Measurement(),  # noqa: B008 (frozen)
        **fields: Any,
    ) -> Verdict:
        bench = self.bench
        return Verdict(
            candidate=state.candidate.name,
            status=status,
            reason=reason,
            floor_ms=bench.floor_ms,
            sandbox=bench.launcher.level,
            language=detect(state.candidate.source).name,
            measurement=replace(
                measurement,
                seconds=state.clock.seconds(),
                preparation_seconds=self._preparation_seconds,
                machine_code=state.machine_code,
            ),
            environment=replace(
                environment.snapshot(bench.target), precision=bench.precision, mode=bench.task.mode
            ),
            task=bench.task.name,
            candidate_id=state.candidate.id,
            **{"parameters": state.parameters, "notes": self._standing_notes(state)} | fields,
        )

    def close(self) -> None:
        """End all processes and free the bench."""
        self.wait_for_teardown()
        if self._energy_meter:
            self._energy_meter.close()
        if self._startup:
            self._startup.close()
        self.bench.close()
