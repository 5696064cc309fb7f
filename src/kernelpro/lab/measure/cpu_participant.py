"""The protocol of a call on the CPU.

 1. The child drops its last output and, in timed rounds, calls the model once on old inputs, so that code and
    caches of the host are warm. The parent freezes it.
 2. The parent writes the inputs into one of the child's buffer sets, flushes the cache, and ends its own idle
    threads. It sends the request while the child is frozen, so that the child cannot use time between waking
    and the request.
 3. The clock starts, and the parent thaws the child.
 4. The child replies that it is done and where its output lies.
 5. The parent immediately samples a few elements, then the clock stops: the child gains nothing by delaying
    this first look. The parent freezes the child, reads the whole output, and compares it with the samples.

CPU time that the sandbox uses while it is frozen in step 2 is added to the call's time.
"""

from __future__ import annotations

import os
import random
import time

import torch

from kernelpro.lab.measure.openmp import end_idle_threads
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.samples import CallResult, Sample
from kernelpro.lab.sandbox import procfs
from kernelpro.lab.sandbox.memory import HostReader, OutputUnreadable
from kernelpro.lab.sandbox.outputs import (
    CandidateRejected,
    Claim,
    OutputSpec,
    check_structure,
    parse_claims,
    parse_times,
)
from kernelpro.records import Status

_STOPPING_CPU_MS = 0.05
"""CPU time, in ms, that stopping the processes may itself take."""


class CpuParticipant(Participant):
    """A participant on the CPU. No call is sealed, because all processes of the sandbox are stopped while
    inputs are written."""

    device = "cpu"
    _reader: HostReader

    def _make_reader(self) -> HostReader:
        return HostReader(self.process.pid)

    def call(
        self,
        inputs: list[torch.Tensor],
        spec: OutputSpec,
        seconds: float,
        sealed: bool = False,
        prelaunch: bool = False,
    ) -> CallResult:
        """One call under the protocol, after `prepare`."""
        assert not sealed and not prelaunch, "sealed calls are for a GPU"
        buffer_set = random.randrange(len(self.regions))
        self._freeze()
        self.process.pin_threads()
        before_ms = self.process.cpu_time_ms()
        self.write_inputs(buffer_set, inputs)
        self._flusher.flush()
        end_idle_threads()
        stopped_ms = self.process.cpu_time_ms() - before_ms
        stopped_ms = stopped_ms if stopped_ms > _STOPPING_CPU_MS else 0.0
        self.send({"op": "call", "sets": [buffer_set]})
        begun = time.perf_counter()
        self.process.thaw()
        self.process.unpin_main_thread()
        reply = self.receive("call", seconds)
        own_ms, native_ms = parse_times(reply)
        claims = parse_claims(_only(reply.get("outputs")), spec)
        try:
            samples = [self._reader.sample(slot) for slot, _ in claims]
        except OutputUnreadable as error:
            raise CandidateRejected(Status.CHEATING, str(error)) from None
        ended = time.perf_counter()
        self._freeze()
        outputs = self._read(claims)
        _compare_with_samples(outputs, samples)
        check_structure(reply.get("structure"), spec)
        self._check_inputs_unmodified(buffer_set, inputs)
        self._require_memory_outside_inputs(claims, spec)
        self.cpu_ms_while_stopped.append(stopped_ms)
        wall_ms = 1e3 * (ended - begun) + stopped_ms
        sample = Sample(own_ms + stopped_ms, wall_ms, sealed=False, native_ms=native_ms)
        return CallResult(outputs, sample, claims)

    def _require_memory_outside_inputs(self, claims: list[Claim], spec: OutputSpec) -> None:
        """Reject an output in the memory of an input where the reference returns it in other memory: it would
        change with the input, and returning it skips the work of copying it."""
        if self.trusted:
            return
        inodes = {os.fstat(region.fd).st_ino for region in self.regions if region.fd is not None}
        for index, (slot, _) in enumerate(claims):
            if spec.may_share_input(index) or not slot.span():
                continue
            if procfs.mapped_inode(self.process.pid, slot.offset) in inodes:
                raise CandidateRejected(
                    Status.WRONG, f"returns output {index} in the memory of an input; the reference does not"
                )


def _only(outputs: object) -> object:
    """The outputs of the only call."""
    return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else None


def _compare_with_samples(outputs: list[torch.Tensor], samples: list[dict[int, bytes]]) -> None:
    for output, sampled in zip(outputs, samples, strict=True):
        raw = torch.empty(0, dtype=torch.uint8).set_(output.untyped_storage())
        for offset, element in sampled.items():
            if bytes(raw[offset : offset + len(element)].tolist()) != element:
                raise CandidateRejected(
                    Status.CHEATING, "the output was still changing after the call had returned"
                )
