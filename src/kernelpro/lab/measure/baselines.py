"""Baselines: the reference in several variants, in a sandboxed process of its own, calibrated once per task.

The fastest variant is the anchor: it is called in every round beside a candidate. The other variants are
linked to it by ratios that are measured here in interleaved rounds. An A/A control times the anchor against
itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelpro.lab.measure.cuda_participant import PRELAUNCH_TRIES, CudaParticipant
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.rounds import Rounds
from kernelpro.lab.measure.samples import Kind, Sample
from kernelpro.lab.measure.statistics import CERTAIN, SYSTEMATIC, lower_bound, median_interval, ratio_interval
from kernelpro.lab.measure.turns import Turns
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec
from kernelpro.records import BadInput, Interval

Inputs = Callable[[int], list[torch.Tensor]]
_CONTROL = "A/A"
_SAME_PROCESS = SYSTEMATIC["cuda"]
"""The control is called in the anchor's own process, whose memory does not differ."""


@dataclass
class Baselines:
    """The variants of the reference, and their times."""

    participant: Participant
    variants: list[str]
    output_spec: OutputSpec
    inputs: Inputs
    """Returns the inputs for a seed."""
    first_timeout: float
    call_timeout: float
    notes: list[str] = field(default_factory=list)
    has_all_memory: bool = False
    """No other memory plan leaves more to them: a variant that runs out of memory is left out."""
    anchor: str = ""
    rounds: Rounds = field(default_factory=Rounds)
    warm_ms: dict[str, float] = field(default_factory=dict)
    prelaunchable: set[str] = field(default_factory=set)
    """Variants whose calls can be launched before their inputs are written."""
    seeds: dict[str, str] = field(default_factory=dict)
    """The compilers' code as candidates (lab/seeds), by variant, if it could be captured."""
    _control_variant: str = ""
    _reply: dict[str, Any] | None = None
    """The reply to `compile_variants`: what was compiled, or that a compiler waits to measure."""

    def start_compiling(self, start: dict[str, Any], load: dict[str, Any], tail: bytes) -> None:
        """Load the reference and start the compilers, without waiting for them."""
        try:
            self.participant.request(start, self.first_timeout)
            self.participant.request(load, self.first_timeout, tail)
            self.participant.map_inputs(self.call_timeout)
            self.participant.send({"op": "compile_variants", "variants": self.variants})
        except CandidateRejected as error:
            raise BadInput(
                f"the reference cannot be loaded in a process of its own: {error.reason}"
            ) from None

    def are_compiled(self) -> bool:
        """Whether `await_compilers` would return at once."""
        return self._reply is not None or self.participant.process.channel.has_data()

    def await_compilers(self) -> None:
        """Wait until the variants are compiled, or until a compiler has to measure on the device. Such a
        compiler waits for `finish_compiling`."""
        if self._reply is None:
            self._reply = self._receive("compile_variants")

    def finish_compiling(self) -> Collection[str]:
        """Let compilers measure and finish. Nothing else may use the device meanwhile. Returns the variants
        that failed."""
        self.await_compilers()
        if self._reply and self._reply.get("tuning"):
            self._reply = None
            self.participant.send({"op": "tune"})
            self.await_compilers()
            self._receive("tune")
        assert self._reply
        failed: dict[str, str] = self._reply["failed"]
        return failed.keys()

    def warm_up(self, seed: int) -> None:
        """Call every variant once, after `finish_compiling`. Nothing else may use the device meanwhile.

        Variants that failed are removed, with a note. Raises BadInput if the eager reference failed.
        """
        reply = self._reply
        assert reply
        self.seeds = reply["seeds"]
        for variant, reason in reply["failed"].items():
            is_needed = variant.startswith("eager") or not self.has_all_memory
            if is_needed and "out of memory" in reason.lower():
                raise torch.OutOfMemoryError(reason.splitlines()[0])
            if variant.startswith("eager"):
                raise BadInput(f"the reference does not run: {reason}")
            self.variants.remove(variant)
            self.notes.append(f"baseline {variant} left out: {reason.splitlines()[0][:200]}")
        if not self.variants:
            raise BadInput(self.notes[-1])
        inputs = self.inputs(seed)
        self.warm_ms = {variant: self.call(variant, inputs).own_ms for variant in self.variants}
        if self.uses_sealed_calls:
            self.prelaunchable = {name for name in self.variants if self._can_prelaunch(name, inputs)}
        self.anchor = min(self.warm_ms, key=lambda name: self.warm_ms[name])

    def _receive(self, operation: str) -> dict[str, Any]:
        try:
            return self.participant.receive(operation, self.first_timeout)
        except CandidateRejected as error:
            raise BadInput(f"the baselines do not compile: {error.reason}") from None

    def _can_prelaunch(self, variant: str, inputs: list[torch.Tensor]) -> bool:
        if not self.participant.can_prelaunch:
            return False
        for _ in range(PRELAUNCH_TRIES):
            self._call(variant, inputs, sealed=True, prelaunch=True)
            if self.participant.last_prelaunched:
                return True
        return False

    def call(
        self, variant: str, inputs: list[torch.Tensor], sealed: bool = False, prelaunch: bool = True
    ) -> Sample:
        """One call under the protocol. A sealed call is prelaunched if possible, unless `prelaunch` is
        False."""
        return self._call(variant, inputs, sealed, prelaunch and variant in self.prelaunchable)

    def _call(self, variant: str, inputs: list[torch.Tensor], sealed: bool, prelaunch: bool) -> Sample:
        # outside the block: if this fails, it is the candidate that has not freed its memory
        self.participant.take_turn()
        try:
            self.participant.prepare_round(self.first_timeout, variant=variant)
            return self.participant.call(
                inputs, self.output_spec, self.call_timeout, sealed, prelaunch
            ).sample
        except CandidateRejected as error:
            raise BadInput(f"the reference does not run as baseline {variant}: {error.reason}") from None

    def burst(self, variant: str, batch: list[list[torch.Tensor]], prelaunch: bool = True) -> Sample:
        """Several calls in a row, prelaunched if possible, unless `prelaunch` is False."""
        participant = self.participant
        assert isinstance(participant, CudaParticipant)
        ahead = prelaunch and variant in self.prelaunchable
        try:
            participant.prepare_round(self.first_timeout, variant=variant)
            return participant.burst(batch, self.output_spec, self.call_timeout, ahead).sample
        except CandidateRejected as error:
            raise BadInput(f"the reference does not run as baseline {variant}: {error.reason}") from None

    def calibrate(self, seeds: list[int]) -> None:
        """Run interleaved rounds of all variants, and choose the anchor.

        Each round calls the first anchor twice: the second call is the A/A control.
        """
        self._control_variant = self._control_variant or self.anchor
        for number, seed in enumerate(seeds):
            inputs, sealed = self.inputs(seed), self.uses_sealed_calls and number % 2 == 0
            order = [*self.variants, _CONTROL]
            random.shuffle(order)
            self.rounds.add(
                {
                    name: self.call(self._control_variant if name == _CONTROL else name, inputs, sealed)
                    for name in order
                }
            )
            del inputs  # frees memory for the next ones
        self.anchor = min(self.variants, key=lambda name: self.time_ms(name).value)

    @property
    def uses_sealed_calls(self) -> bool:
        """Whether some calls are sealed; see cuda_participant.py."""
        return self.participant.device == "cuda"

    @property
    def calibrated_rounds(self) -> int:
        """The number of calibration rounds so far."""
        return len(self.rounds.samples.get(_CONTROL, []))

    def excess_protocol_ms(self, prelaunched: bool) -> dict[Kind, float]:
        """By kind of call, how much more the protocol certainly costs the anchor than the variant that it
        costs least, in ms.

        It is the low end of an interval instead of a difference of medians, because medians differ by up to a
        millisecond by chance while compilers keep all cores busy. `prelaunched`: whether sealed calls are
        prelaunched if possible; otherwise they cost as much as single calls.
        """
        excess: dict[Kind, float] = {}
        for kind in self.rounds.kinds:
            comparable = [
                name
                for name in self.variants
                if kind == "single" or (name in self.prelaunchable) == (self.anchor in self.prelaunchable)
            ]
            protocol = {name: self.rounds.protocol_ms(name, kind) for name in comparable}
            anchor = protocol[self.anchor]
            lows = [median_interval(anchor - other, CERTAIN).low for other in protocol.values()]
            excess[kind] = max(0.0, *lows)
        return excess if prelaunched else dict.fromkeys(excess, excess["single"])

    def time_ms(self, variant: str) -> Interval:
        """The median time of a variant."""
        return median_interval(self.rounds.own_ms(variant))

    def log_ratio_to_anchor(self, variant: str, kind: Kind) -> torch.Tensor:
        """Per round, the log of the variant's time divided by the anchor's. For bursts it is that of queued
        calls."""
        return -self.rounds.log_link(self.anchor, variant, "queued" if kind == "burst" else kind)

    def release_memory(self) -> None:
        """Free the memory that their allocator holds beside parameters, for another process."""
        turns = Turns(True, self.call_timeout)
        turns.take(self.participant)
        turns.take(None)

    def close(self) -> None:
        """End the process that holds the variants."""
        self.participant.close()

    def self_comparison(self) -> Interval:
        """The A/A control: the ratio that this machine measures between a baseline and itself."""
        return lower_bound(
            [
                ratio_interval(self.rounds.log_ratio(_CONTROL, self._control_variant, kind), _SAME_PROCESS)
                for kind in self.rounds.kinds
            ]
        )
