"""Baselines: the reference in several forms, in a cell of its own, calibrated once for a task.

The fastest one is the anchor: it is called in every round beside a candidate. The others are linked
to it by ratios measured here, interleaved, with an A/A control (the anchor against itself).
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelpro.lab.measure.participant import TRIES, Participant
from kernelpro.lab.measure.timing import CERTAIN, Kind, Rounds, Sample, lower, median_interval, ratio_interval
from kernelpro.lab.sandbox.answers import CandidateRejected, Expected
from kernelpro.records import BadInput, Interval

Inputs = Callable[[int], list[torch.Tensor]]
_CONTROL = "A/A"


@dataclass
class Baselines:
    participant: Participant
    variants: list[str]
    expected: Expected
    inputs: Inputs
    """Fresh inputs for a round."""
    first_timeout: float
    call_timeout: float
    notes: list[str] = field(default_factory=list)
    anchor: str = ""
    rounds: Rounds = field(default_factory=Rounds)
    warm_ms: dict[str, float] = field(default_factory=dict)
    ahead: set[str] = field(default_factory=set)
    """Variants whose calls can be launched before their inputs are there."""
    seeds: dict[str, str] = field(default_factory=dict)
    """What compilers wrote, as candidates (lab/seeds), of those variants where that could be had."""
    _controlled: str = ""

    def begin(self, start: dict[str, Any], task: Any, seed: int) -> None:
        """Load the reference and set the compilers going; returns while they work."""
        buffer = io.BytesIO()
        torch.save({"task": task}, buffer)
        try:
            self.participant.ask(start, self.first_timeout)
            self.participant.ask({"op": "load", "seed": seed}, self.first_timeout, buffer.getvalue())
            self.participant.connect(self.call_timeout)
            self.participant.tell({"op": "rehearse", "variants": self.variants})
        except CandidateRejected as error:
            raise BadInput(
                f"the reference cannot be loaded in a process of its own: {error.reason}"
            ) from None

    def warm_up(self, seed: int) -> None:
        """Wait for the compilers, then call every variant once. One that failed is left out, with a note."""
        try:
            answer = self.participant.hear("rehearse", self.first_timeout)
        except CandidateRejected as error:
            raise BadInput(f"the baselines do not compile: {error.reason}") from None
        self.seeds = answer["seeds"]
        for variant, reason in answer["failed"].items():
            if variant.startswith("eager"):
                raise BadInput(f"the reference does not run: {reason}")
            self.variants.remove(variant)
            self.notes.append(f"baseline {variant} left out: {reason.splitlines()[0][:200]}")
        if not self.variants:
            raise BadInput(self.notes[-1])
        inputs = self.inputs(seed)
        self.warm_ms = {variant: self.call(variant, inputs).own for variant in self.variants}
        if self.seals:
            self.ahead = {variant for variant in self.variants if self._can_be_ahead(variant, inputs)}
        self.anchor = min(self.warm_ms, key=lambda name: self.warm_ms[name])

    def _can_be_ahead(self, variant: str, inputs: list[torch.Tensor]) -> bool:
        if not self.participant.ahead:
            return False
        for _ in range(TRIES):
            self._call(variant, inputs, sealed=True, ahead=True)
            if self.participant.launched:
                return True
        return False

    def call(
        self, variant: str, inputs: list[torch.Tensor], sealed: bool = False, ahead: bool = True
    ) -> Sample:
        """Under the protocol. `ahead`: launched ahead where that can be."""
        return self._call(variant, inputs, sealed, ahead and variant in self.ahead)

    def _call(self, variant: str, inputs: list[torch.Tensor], sealed: bool, ahead: bool) -> Sample:
        try:
            self.participant.prepare_round(self.first_timeout, variant=variant)
            return self.participant.call(inputs, self.expected, self.call_timeout, sealed, ahead).sample
        except CandidateRejected as error:
            raise BadInput(f"the reference does not run as baseline {variant}: {error.reason}") from None

    def calibrate(self, seeds: list[int]) -> None:
        """Interleaved rounds of all variants and, a second time, of the one that was the anchor at first."""
        self._controlled = self._controlled or self.anchor
        for number, seed in enumerate(seeds):
            inputs, sealed = self.inputs(seed), self.seals and number % 2 == 0
            order = [*self.variants, _CONTROL]
            random.shuffle(order)
            self.rounds.add(
                {
                    name: self.call(self._controlled if name == _CONTROL else name, inputs, sealed)
                    for name in order
                }
            )
        self.anchor = min(self.variants, key=lambda name: self.time(name).value)

    @property
    def seals(self) -> bool:
        """Whether some of its calls are sealed."""
        return self.participant.device == "cuda"

    @property
    def calibrated(self) -> int:
        """Rounds made so far."""
        return len(self.rounds.samples.get(_CONTROL, []))

    def excess_protocol_ms(self, ahead: bool) -> dict[Kind, float]:
        """What surely lies between the two clocks for the anchor, beyond the variant for which it is least.

        Not what medians say: while compilers keep all cores busy, those of some calls lie up to a millisecond apart by chance.
        `ahead`: sealed calls are launched ahead, where they can be; else their protocol is that of single ones.
        """
        found: dict[Kind, float] = {}
        for kind in self.rounds.kinds:
            alike = [
                name
                for name in self.variants
                if kind == "single" or (name in self.ahead) == (self.anchor in self.ahead)
            ]
            beyond = {name: self.rounds.protocol(name, kind) for name in alike}
            found[kind] = max(
                0.0, *(median_interval(beyond[self.anchor] - other, CERTAIN).low for other in beyond.values())
            )
        return found if ahead else dict.fromkeys(found, found["single"])

    def time(self, variant: str) -> Interval:
        return median_interval(self.rounds.own(variant))

    def link(self, variant: str, kind: Kind) -> torch.Tensor:
        """Per-round log of how many times slower a variant is than the anchor."""
        return -self.rounds.log_link(self.anchor, variant, kind)

    def close(self) -> None:
        self.participant.close()

    def control(self) -> Interval:
        """A baseline against itself: what this machine calls equal today."""
        return lower(
            [
                ratio_interval(self.rounds.log_ratio(_CONTROL, self._controlled, kind))
                for kind in self.rounds.kinds
            ]
        )
