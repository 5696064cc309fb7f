"""The protocol of a call on a GPU.

 1. The child drops its oldest output and, in timed rounds, calls the model once on stale inputs, so that the
    host's path is warm. The parent freezes it.
 2. The parent writes the inputs into one of the child's buffer sets and flushes the cache. It sends the
    request before the child wakes, so that nothing can be gained between waking and being asked.
 3. The clock starts, and the parent thaws the child.
 4. The child replies that it is done and where its output lies.
 5. The parent freezes the child and copies its output. The clock stops when the copy is complete: work that
    is still running either delays the copy or is missing from it.

Half of the timed calls are sealed: the clock starts, then the inputs are written, then the child may start. A
kernel that runs on while its process is frozen has no head start in these calls. Where possible a sealed call
is prelaunched: the child launches all of it behind a gate, a word of shared memory that its stream waits for,
and says so before the clock starts. When the inputs are written, the device opens the gate. So the time that
a host needs for the launch is not part of the call's time. A call that waits for the device before all of it
is launched cannot be prelaunched; the child is told when its inputs are written.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch

from kernelpro.lab.measure.participant import Participant, as_bits
from kernelpro.lab.measure.samples import BurstResult, CallResult, Sample
from kernelpro.lab.sandbox.memory import DeviceReader
from kernelpro.lab.sandbox.outputs import (
    FORGED_OUTPUTS,
    CandidateRejected,
    OutputSpec,
    check_structure,
    parse_claims,
    parse_times,
)
from kernelpro.records import Status

_SPIN_SECONDS = 0.1
_LAUNCH_SECONDS = 0.05
"""More launches than a stream can queue (about a thousand) take less."""
_ISSUE_CYCLES = 600_000
"""0.3 ms on an H200: writing inputs and flushing the cache are issued in less."""
PRELAUNCH_TRIES = 3
"""Of so many calls one must have been prelaunched, for others to be: a host may be late."""
BUFFER_SETS = 8
"""The addresses of inputs and outputs change a kernel's time by 1 % on an H200 (a transpose): rounds use so
many."""


class CudaParticipant(Participant):
    """Called on a GPU, whose kernels run on while the child's process is frozen."""

    device = "cuda"
    _reader: DeviceReader

    copies_burst_outputs = False
    """The outputs of its bursts are copies, because they shared memory."""
    _gate_count = 0

    def _make_reader(self) -> DeviceReader:
        return DeviceReader()

    @property
    def retained_outputs(self) -> int:
        """The last few outputs of timed calls are kept, so that each lies at another address."""
        return min(BUFFER_SETS, len(self.regions)) - 1

    def call(
        self,
        inputs: list[torch.Tensor],
        spec: OutputSpec,
        seconds: float,
        sealed: bool = False,
        prelaunch: bool = False,
    ) -> CallResult:
        """One call under the protocol, after `prepare`."""
        buffer_set = random.randrange(len(self.regions))
        # its other processes were stopped after the last call; sealed calls show whether one helps
        self.process.freeze_main()
        if not sealed:
            self._write_and_flush(buffer_set, inputs)
        torch.cuda.synchronize()
        self._reader.reserve(spec.sizes)
        input_write_seconds = 0.0
        if sealed:
            begun, input_write_seconds = self._call_sealed(buffer_set, inputs, prelaunch)
        else:
            self.send({"op": "call", "set": buffer_set})
            begun = time.perf_counter()
            self.process.thaw()
        reply = self._receive_result("call", seconds)
        own_ms, native_ms = parse_times(reply)
        claims = parse_claims(reply.get("outputs"), spec)
        self.process.freeze_main()
        outputs = self._read(claims)
        ended = time.perf_counter()
        self._stop_all()
        check_structure(reply.get("structure"), spec)
        self._check_inputs_unmodified(buffer_set, inputs)
        sample = Sample(own_ms, 1e3 * (ended - begun), sealed, native_ms, 1e3 * input_write_seconds)
        return CallResult(outputs, sample, claims)

    def _call_sealed(
        self, buffer_set: int, inputs: list[torch.Tensor], prelaunch: bool
    ) -> tuple[float, float]:
        """Write the inputs after the clock has started.

        Returns when it started, and the seconds that writing took in a prelaunched call.
        """
        request = {"op": "call", "set": buffer_set}
        if prelaunch:
            begun, written = self._launch_behind_gate(
                request, lambda: self._write_and_flush(buffer_set, inputs)
            )
            return begun, written - begun
        self.process.thaw()
        begun = time.perf_counter()
        self._write_and_flush(buffer_set, inputs)
        torch.cuda.synchronize()
        self.send(request)
        return begun, 0.0

    def _launch_behind_gate(self, request: dict[str, Any], write: Callable[[], None]) -> tuple[float, float]:
        """Let the child launch its work; once it has, or cannot, `write` the inputs and open the gate.

        Returns when writing began and ended, by the device's clock: a child that waits may keep the device
        for its time slice (2 ms on an H200, mostly where several streams wait), and writing begins that much
        later, which is not the candidate's doing. `write` is issued while the device sleeps, so that it
        mostly does not pause in between and lose the device again.
        """
        self._gate_count += 1
        begun, written, opened = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        try:
            self.send(request | {"gate": self._gate_count})
            self.process.thaw()
            self.last_prelaunched = self._has_launched(request["op"])
            torch.cuda._sleep(_ISSUE_CYCLES)  # type: ignore[no-untyped-call]
            begun.record()
            write()
            written.record()
        finally:  # the gate must open whatever happens: the device would wait forever
            now = time.perf_counter()
            self.regions[0].open_gate(self._gate_count)
        opened.record()
        # the last look before the gate opens counts: a parent that is delayed does not make the call shorter
        while not opened.query():  # type: ignore[no-untyped-call]
            now = time.perf_counter()
        return now - 1e-3 * begun.elapsed_time(opened), now - 1e-3 * written.elapsed_time(opened)

    def _has_launched(self, operation: str) -> bool:
        self.process.channel.spin_until_data(_LAUNCH_SECONDS)
        if not self.process.channel.has_data():
            return False
        if self.receive(operation, _LAUNCH_SECONDS).get("launched") is not True:
            raise CandidateRejected(Status.CHEATING, f"the reply to '{operation}' was forged")
        return True

    def _receive_result(self, operation: str, seconds: float) -> dict[str, Any]:
        self.process.channel.spin_until_data(_SPIN_SECONDS)
        reply = self.receive(operation, seconds)
        # a late notice that all is launched comes before the result
        return self.receive(operation, seconds) if reply.get("launched") is True else reply

    def burst(
        self, batch: list[list[torch.Tensor]], spec: OutputSpec, seconds: float, prelaunch: bool = False
    ) -> BurstResult | None:
        """Several calls in a row, after `prepare`; the clock stops when the last output has been read.

        `prelaunch`: all calls are launched before their inputs are written and before the clock starts. All
        buffer sets are written, however many calls: the longer a child stands still, the later it wakes up.
        Returns None once, if its outputs share memory: from then on the child copies them.
        """
        order = random.sample(range(len(self.regions)), len(self.regions))
        sets = order[: len(batch)]
        self._reader.reserve(spec.sizes)
        request = {"op": "burst", "sets": sets, "total": len(self.regions)}
        self.last_prelaunched = False
        if prelaunch:
            begun = self._launch_behind_gate(request, lambda: self._write_all(order, batch))[1]
        else:
            self.process.freeze_main()
            self._write_all(order, batch)
            torch.cuda.synchronize()
            self.send(request)
            begun = time.perf_counter()
            self.process.thaw()
        reply = self._receive_result("burst", seconds)
        if reply.get("again") is True and not self.copies_burst_outputs:
            self.copies_burst_outputs = True
            return None
        descriptions, host_ms = reply.get("outputs"), reply.get("host_ms")
        if (
            not isinstance(descriptions, list)
            or len(descriptions) != len(self.regions)
            or not isinstance(host_ms, float)
        ):
            raise CandidateRejected(Status.CHEATING, FORGED_OUTPUTS)
        *earlier, newest = descriptions[: len(batch)]
        last_claims = parse_claims(newest, spec)
        self.process.freeze_main()
        last_outputs = self._read(last_claims)
        ended = time.perf_counter()
        self._stop_all()
        claims = [parse_claims(description, spec) for description in earlier]
        located = [
            (slot.offset, handle) for call in (*claims, last_claims) for slot, handle in call if slot.span()
        ]
        if len(set(located)) < len(located):
            raise CandidateRejected(
                Status.CHEATING, "outputs of different calls are said to lie in the same place"
            )
        outputs = [*map(self._read, claims), last_outputs]
        for buffer_set, inputs in zip(sets, batch, strict=True):
            self._check_inputs_unmodified(buffer_set, inputs)
        return BurstResult(outputs, 1e3 * (ended - begun), host_ms, self.last_prelaunched)

    def check_output_unchanged(self, result: CallResult) -> None:
        """The frozen child's output must still be what it was: nothing may finish late."""
        for before, after in zip(result.outputs, self._read(result.claims), strict=True):
            if not torch.equal(as_bits(before), as_bits(after)):
                raise CandidateRejected(Status.CHEATING, "the output changed after it was handed over")

    def _stop_all(self) -> None:
        """Stop the child; wait for it only if it has started other processes: on a GPU the host has little to
        do."""
        if not self._trusted and self.process.stop_without_waiting() > 1:
            self._freeze()

    def _write_all(self, order: list[int], batch: list[list[torch.Tensor]]) -> None:
        for buffer_set, inputs in zip(order, cycle(batch), strict=False):
            self.write_inputs(buffer_set, inputs)
        self._flusher.flush()


def device_bytes_outside_torch() -> int:
    """Device memory in use that this process's torch allocator does not hold."""
    free, total = torch.cuda.mem_get_info()
    # torch.cuda.memory_reserved takes ten times as long
    own = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]
    return int(total - free - own)
