"""The protocol of calls on a GPU. A request is for one call, or for a burst: several calls in a row, each on
its own inputs.

 1. The child drops its oldest outputs and, in timed rounds, calls the model once on old inputs, so that code
    and caches of the host are warm. The parent freezes it.
 2. The parent writes the inputs into some of the child's buffer sets and flushes the cache. It sends the
    request while the child is frozen, so that the child cannot use time between waking and the request.
 3. The clock starts, and the parent thaws the child.
 4. The child replies that it is done and where its output lies.
 5. The parent freezes the child and copies its output. The clock stops when the copy is complete: work that
    is still running either delays the copy or is missing from it.

Half of the timed calls, and all bursts, are sealed: the clock starts, then the inputs are written, then the
child may start. So a kernel that keeps running while its process is frozen has no head start. If possible, a
sealed call is prelaunched:

 1. The child launches the whole call behind a gate, a word of shared memory that its stream waits for, and
    reports where the outputs will lie. The parent freezes it until the outputs have been read, so that
    nothing that needs the host can happen.
 2. The parent writes the inputs; then the device opens the gate, and the clock starts.
 3. The clock stops when the child has proven that its outputs are complete (completion.py).

So the call's time includes neither slow launches nor a slow reply of the host. A call that waits for the
device, or needs the host before it is complete, cannot be prelaunched: the child gets the request after the
inputs have been written.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from kernelpro.lab.measure import environment
from kernelpro.lab.measure.memory_plan import MAX_ROUND_SETS
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.samples import BurstResult, CallResult, Sample
from kernelpro.lab.sandbox.completion import CompletionPage, is_proven
from kernelpro.lab.sandbox.memory import DeviceReader
from kernelpro.lab.sandbox.outputs import (
    FORGED_OUTPUTS,
    CandidateRejected,
    Claim,
    OutputSpec,
    check_structure,
    parse_claims,
    parse_times,
)
from kernelpro.records import Status

_SPIN_SECONDS = 0.1
_LAUNCH_SECONDS = 0.05
"""Time limit for launching a call. A stream can queue about a thousand launches, which take less."""
_PROOF_SECONDS = 1.0
"""A call that has not ended by then needs its host, or is so long that launches do not matter."""
_ISSUE_CYCLES = 600_000
"""0.3 ms on an H200; the host needs less to issue the writing of inputs and the cache flush."""
_BUSY_PERCENT = 90
"""From this utilization on, the device counts as busy: a kernel that does not end shows 100."""
PRELAUNCH_TRIES = 3
"""A participant is prelaunched if one of so many attempts succeeds: single ones fail if the host is late."""
BUFFER_SETS = MAX_ROUND_SETS
"""Buffer sets of timed rounds, where memory allows."""


@dataclass(frozen=True)
class _Timed:
    """One request under the protocol."""

    outputs: list[list[torch.Tensor]]
    claims: list[list[Claim]]
    sample: Sample


class CudaParticipant(Participant):
    """A participant on a GPU, whose kernels keep running while the child's process is frozen."""

    device = "cuda"
    _reader: DeviceReader

    def __init__(self, *arguments: Any, page: CompletionPage):
        super().__init__(*arguments)
        self._page = page

    def _make_reader(self) -> DeviceReader:
        return DeviceReader()

    def call(
        self,
        inputs: list[torch.Tensor],
        spec: OutputSpec,
        seconds: float,
        sealed: bool = False,
        prelaunch: bool = False,
    ) -> CallResult:
        """One call under the protocol, after `prepare`."""
        timed = self._call([inputs], spec, seconds, sealed, prelaunch)
        return CallResult(timed.outputs[0], timed.sample, timed.claims[0])

    def burst(
        self, batch: list[list[torch.Tensor]], spec: OutputSpec, seconds: float, prelaunch: bool = False
    ) -> BurstResult:
        """Several sealed calls in a row, after `prepare`."""
        timed = self._call(batch, spec, seconds, sealed=True, prelaunch=prelaunch)
        places = [(slot.offset, handle) for slot, handle in chain(*timed.claims) if slot.span()]
        return BurstResult(timed.outputs, timed.sample, distinct=len(set(places)) == len(places))

    def _call(
        self,
        batch: list[list[torch.Tensor]],
        spec: OutputSpec,
        seconds: float,
        sealed: bool,
        prelaunch: bool,
    ) -> _Timed:
        sets = random.sample(range(len(self.regions)), len(batch))
        # its other processes were stopped after the last call; sealed calls reveal one that runs and helps
        self.process.freeze_main()
        if not sealed:
            self._write_all(sets, batch)
        torch.cuda.synchronize()
        self._reader.reserve(spec.sizes * len(batch))
        request = {"op": "call", "sets": sets}
        if sealed and prelaunch:
            timed = self._call_behind_gate(request, batch, spec, seconds)
        else:
            timed = self._call_at_once(request, batch, spec, seconds, sealed)
        self._stop_all()
        for buffer_set, inputs in zip(sets, batch, strict=True):
            self._check_inputs_unmodified(buffer_set, inputs)
        return timed

    def _call_at_once(
        self,
        request: dict[str, Any],
        batch: list[list[torch.Tensor]],
        spec: OutputSpec,
        seconds: float,
        sealed: bool,
    ) -> _Timed:
        """The child launches its calls on request; the clock includes the launches."""
        if sealed:
            self.process.thaw()
            begun = time.perf_counter()
            self._write_all(request["sets"], batch)
            torch.cuda.synchronize()
            self.send(request)
        else:
            self.send(request)
            begun = time.perf_counter()
            self.process.thaw()
        return self._finish(begun, 0.0, len(batch), spec, seconds, sealed)

    def _finish(
        self, begun: float, write_seconds: float, calls: int, spec: OutputSpec, seconds: float, sealed: bool
    ) -> _Timed:
        """Wait for the child's reply and read its outputs. The clock stops after the last call's output."""
        reply = self._receive_result("call", seconds)
        own_ms, native_ms = parse_times(reply)
        claims = _parse_outputs(reply, calls, spec)
        self.process.freeze_main()
        last = self._read(claims[-1])
        ended = time.perf_counter()
        outputs = [*map(self._read, claims[:-1]), last]
        wall_ms, write_ms = 1e3 * (ended - begun), 1e3 * write_seconds
        return _Timed(outputs, claims, Sample(own_ms, wall_ms, sealed, native_ms, write_ms, calls))

    def _call_behind_gate(
        self,
        request: dict[str, Any],
        batch: list[list[torch.Tensor]],
        spec: OutputSpec,
        seconds: float,
    ) -> _Timed:
        """Let the child launch its calls. When it has, or its time is up, write the inputs and open the gate.

        The input-write time is measured by the device's clock. A waiting child may keep the device for its
        time slice (2 ms on an H200, mostly if several streams wait). Writing then begins that much later,
        which is not charged to the candidate. The writes are issued while the device sleeps, so that they
        usually run without a pause in which the device could switch to the child again.
        """
        calls, count, nonce = len(batch), self.regions[0].next_gate(), secrets.randbits(64) | 1
        claims: list[list[Claim]] | None = None
        begun, written, opened = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        self._page.reset()
        answers = False
        try:
            self.send(request | {"gate": count})
            self.process.thaw()
            if launched := self._receive_launched("call"):
                self._stop_all_at_once()
                claims = _parse_outputs(launched, calls, spec)
            torch.cuda._sleep(_ISSUE_CYCLES)  # type: ignore[no-untyped-call]
            begun.record()
            self._write_all(request["sets"], batch)
            written.record()
            answers = claims is not None
        finally:  # the gate must open whatever happens: the device would wait forever
            if not answers:
                self._page.release()
            now = time.perf_counter()
            self.regions[0].open_gate(count)
        opened.record()
        # the clock starts at the last poll before the gate opens: a delayed parent cannot shorten the call
        while not opened.query():  # type: ignore[no-untyped-call]
            now = time.perf_counter()
        write_seconds = 1e-3 * begun.elapsed_time(opened)
        ended = self._page.await_proof(count, nonce, _PROOF_SECONDS) if claims else None
        self.last_prelaunched = ended is not None
        if claims is None:
            return self._finish(now - write_seconds, write_seconds, calls, spec, seconds, sealed=True)
        answer = self._page.answer()
        self._page.release()
        if ended is None:  # the call may need its host
            self.process.thaw()
            self._receive_result("call", seconds)
            self.process.freeze_main()
        outputs = list(map(self._read, claims))
        if ended is None:
            ended = time.perf_counter()
            own_ms, native_ms = 1e3 * (ended - now) / calls, 0.0
        else:
            self._check_proof(answer, nonce, claims, outputs)
            self.process.thaw()
            own_ms, native_ms = parse_times(self._receive_result("call", seconds))
            self.process.freeze_main()
        wall_ms, write_ms = 1e3 * (ended - now + write_seconds), 1e3 * write_seconds
        sample = Sample(own_ms, wall_ms, True, native_ms, write_ms, calls, proven=self.last_prelaunched)
        return _Timed(outputs, claims, sample)

    def _check_proof(
        self, answer: torch.Tensor, nonce: int, claims: list[list[Claim]], outputs: list[list[torch.Tensor]]
    ) -> None:
        slots = [slot for slot, _ in chain(*claims)]
        if not self.trusted and not is_proven(answer, nonce, list(zip(slots, chain(*outputs), strict=True))):
            raise CandidateRejected(Status.CHEATING, "it reported completion before its output was complete")

    def _receive_launched(self, operation: str) -> dict[str, Any] | None:
        """The child's notice that everything is launched; None if it does not arrive in time."""
        self.process.channel.spin_until_data(_LAUNCH_SECONDS)
        if not self.process.channel.has_data():
            return None
        reply = self.receive(operation, _LAUNCH_SECONDS)
        if reply.get("launched") is not True:
            raise CandidateRejected(Status.CHEATING, f"the reply to '{operation}' was forged")
        return reply

    def _receive_result(self, operation: str, seconds: float) -> dict[str, Any]:
        self.process.channel.spin_until_data(_SPIN_SECONDS)
        reply = self.receive(operation, seconds)
        # a late notice that everything is launched precedes the result
        return reply | self.receive(operation, seconds) if reply.get("launched") is True else reply

    def check_output_unchanged(self, result: CallResult) -> None:
        """Reject a candidate whose output changed while the child was frozen: work finished late."""
        for before, (slot, handle) in zip(result.outputs, result.claims, strict=True):
            if not self._reader.is_unchanged(before, slot, handle):
                raise CandidateRejected(Status.CHEATING, "the output changed after the call had returned it")

    def _device_is_busy(self) -> bool:
        return (environment.sensors().busy_percent() or 0) >= _BUSY_PERCENT

    def _stop_all(self) -> None:
        """Stop the child. Wait until it has stopped only if it has started other processes: on a GPU, the
        host does little work."""
        if not self.trusted and self.process.stop_without_waiting() > 1:
            self._freeze()

    def _stop_all_at_once(self) -> None:
        """Stop the child and all processes that it has started, before the gate opens."""
        if self.trusted:
            self.process.freeze_main()
        else:
            self.process.stop_without_waiting()

    def _write_all(self, sets: list[int], batch: list[list[torch.Tensor]]) -> None:
        for buffer_set, inputs in zip(sets, batch, strict=True):
            self.write_inputs(buffer_set, inputs)
        self._flusher.flush()

    def close(self) -> None:
        """Kill the process and release its mappings."""
        super().close()
        self._page.close()

    def close_in_background(self) -> threading.Thread:
        """See Participant."""
        self._page.close()
        return super().close_in_background()


def _parse_outputs(reply: dict[str, Any], calls: int, spec: OutputSpec) -> list[list[Claim]]:
    """Where the outputs of all calls lie."""
    descriptions = reply.get("outputs")
    if not isinstance(descriptions, list) or len(descriptions) != calls:
        raise CandidateRejected(Status.CHEATING, FORGED_OUTPUTS)
    claims = [parse_claims(description, spec) for description in descriptions]
    check_structure(reply.get("structure"), spec)
    return claims


def device_bytes_outside_torch() -> int:
    """Device memory in use that this process's torch allocator does not hold."""
    free, total = torch.cuda.mem_get_info()
    # torch.cuda.memory_reserved takes ten times as long
    own = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]
    return int(total - free - own)
