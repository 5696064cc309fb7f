"""One side of a timing: a sandboxed process with its own input buffers, called under a protocol.

This module has what both protocols share: requests, replies, buffers, loops. The timed call itself is in
cpu_participant.py and cuda_participant.py.
"""

from __future__ import annotations

import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.measure.memory_plan import MAX_ROUND_SETS
from kernelpro.lab.measure.oracle import same_bits
from kernelpro.lab.measure.samples import CallResult, LoopResult
from kernelpro.lab.measure.turns import Turns
from kernelpro.lab.sandbox.compilation import TimeLimitExceeded
from kernelpro.lab.sandbox.memory import DeviceReader, HostReader, OutputUnreadable, Region, Slot
from kernelpro.lab.sandbox.outputs import CandidateRejected, Claim, OutputSpec, parse_claims
from kernelpro.lab.sandbox.process import MAX_PROCESSES, SandboxedProcess
from kernelpro.lab.sandbox.wire import ChannelClosed, MalformedMessage, ReplyTimeout
from kernelpro.records import BadInput, Status
from kernelpro.records.profiling import MAX_CPU_FLUSH

_MAX_MESSAGE = 6000
_FLUSH_VARIABLE = "KERNELPRO_CPU_FLUSH"


def _cpu_flush_limit() -> int:
    """The most bytes of a flush on a CPU: `MAX_CPU_FLUSH`, or what KERNELPRO_CPU_FLUSH says in MiB."""
    text = os.environ.get(_FLUSH_VARIABLE, "")
    if text and not text.isdecimal():
        raise BadInput(f"{_FLUSH_VARIABLE}={text}: give a number of MiB, such as 128")
    return int(text) << 20 if text else MAX_CPU_FLUSH


class Flusher:
    """Empties the last-level cache by writing twice its size, on a CPU up to a limit."""

    def __init__(self, device: str, cache_bytes: int):
        size = 2 * cache_bytes if device == "cuda" else min(2 * cache_bytes, _cpu_flush_limit())
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """The bytes that a flush writes."""
        return self._buffer.nbytes

    def flush(self) -> None:
        """Evict everything else from the cache."""
        self._buffer.zero_()


class Participant(ABC):
    """A sandboxed process that holds a model, and the protocol by which it is called."""

    device: str
    can_prelaunch = False
    """Its calls can be launched before their inputs are written."""
    last_prelaunched = False
    """Whether the last request to prelaunch a call or burst succeeded."""

    def __init__(
        self,
        process: SandboxedProcess,
        regions: list[Region],
        form: tree.TreeSpec,
        slots: list[Slot],
        flusher: Flusher,
        trusted: bool = False,
    ):
        """`trusted`: the process holds the reference, so the parent does not check it for attacks."""
        self.process, self.regions, self.slots, self.trusted = process, regions, slots, trusted
        self.turns: Turns | None = None
        self.is_guarded = False
        """Whether its buffers have guards."""
        self._form, self._flusher = form, flusher
        self._reader: HostReader | DeviceReader = self._make_reader()
        self.cpu_ms_while_stopped: list[float] = []
        """For each call on a CPU, the CPU time that the sandbox used while it was stopped before the call."""
        self._compile_timeout: float | None = None
        """See `may_compile`."""
        self.is_mapped = False
        """The child has mapped its input regions."""
        self._active_loop = (0, 0.0)
        """Number of buffer sets, and start time, of the running loop."""

    @abstractmethod
    def _make_reader(self) -> HostReader | DeviceReader: ...

    @abstractmethod
    def call(
        self,
        inputs: list[torch.Tensor],
        spec: OutputSpec,
        seconds: float,
        sealed: bool = False,
        prelaunch: bool = False,
    ) -> CallResult:
        """One call under the protocol, after `prepare`. `prelaunch`: launch a sealed call before its inputs
        are written."""

    def check_output_unchanged(self, result: CallResult) -> None:
        """Reject a candidate whose output changed after it was handed over; on a CPU, `call` checks this."""
        return

    @property
    def retained_outputs(self) -> int:
        """How many earlier outputs the child keeps, so that each one lies at another address."""
        return min(MAX_ROUND_SETS, len(self.regions)) - 1

    @property
    def buffer_sets(self) -> int:
        """How many sets of input buffers there are."""
        return len(self.regions)

    # --- requests ------------------------------------------------------------------------------------

    def map_inputs(self, seconds: float) -> None:
        """Map the input regions in the child."""
        regions = [{"nbytes": region.nbytes, "handle": region.handle} for region in self.regions]
        slots, gate = [slot.to_json() for slot in self.slots], self.regions[0].gate_offset
        reply = self.request(
            {"op": "map_inputs", "regions": regions, "slots": slots, "form": self._form, "gate": gate},
            seconds,
        )
        self.can_prelaunch = reply.get("gated") is True and self.regions[0].supports_gate()
        self.is_mapped = True

    def use_slots(self, slots: list[Slot], seconds: float) -> None:
        """Map inputs with another layout in the same regions."""
        self.slots = slots
        self.map_inputs(seconds)

    @contextmanager
    def may_compile(self, seconds: float | None) -> Iterator[None]:
        """In this block, the time in which the child compiles counts against `seconds`, and only the rest
        against the time limit of a request. None: compiling has no separate time limit."""
        self._compile_timeout = seconds
        try:
            yield
        finally:
            self._compile_timeout = None

    def _device_is_busy(self) -> bool:
        """Whether kernels run on the device, which means that the child is not compiling."""
        return False

    def request(self, request: dict[str, Any], seconds: float, tail: bytes = b"") -> dict[str, Any]:
        """Send one request and return the reply; a failure raises CandidateRejected."""
        self.send(request, tail)
        return self.receive(request["op"], seconds)

    def send(self, request: dict[str, Any], tail: bytes = b"") -> None:
        """Send one request."""
        if self._compile_timeout is not None:
            request = request | {"may_compile": True}
        try:
            self.process.channel.send(request, tail)
        except ChannelClosed:
            raise CandidateRejected(Status.CRASHED, self._describe_crash(request["op"])) from None

    def receive(self, operation: str, seconds: float) -> dict[str, Any]:
        """The reply to a request; a failure raises CandidateRejected."""
        try:
            if self._compile_timeout is None:
                reply, _ = self.process.channel.receive(seconds)
            else:
                reply, _ = self.process.receive(seconds, self._compile_timeout, self._device_is_busy)
        except (ReplyTimeout, TimeLimitExceeded) as error:
            if len(self.process.process_tree()) > MAX_PROCESSES:
                reason = f"it started more than {MAX_PROCESSES} processes and was killed"
                raise CandidateRejected(Status.CRASHED, f"{_PHASES[operation]}: {reason}") from None
            reason = str(error) or f"took more than {seconds:g} s and was killed"
            raise CandidateRejected(Status.TIMED_OUT, f"{_PHASES[operation]}: {reason}") from None
        except ChannelClosed:
            raise CandidateRejected(Status.CRASHED, self._describe_crash(operation)) from None
        except MalformedMessage as error:
            raise CandidateRejected(
                Status.CHEATING, f"the reply to '{operation}' was forged: {error}"
            ) from None
        if reply.get("ok") is not True:
            raise self._failure(reply)
        return reply

    def _describe_crash(self, operation: str) -> str:
        lines = [line for line in self.process.log_tail().splitlines() if line.strip()]
        output = f"; last output: {lines[-1][:300]}" if lines else ""
        return f"{_PHASES[operation]}: the process {self.process.describe_exit()}{output}"

    def _failure(self, reply: dict[str, Any]) -> CandidateRejected:
        stage, message = str(reply.get("stage")), str(reply.get("error"))[:_MAX_MESSAGE]
        if self.process.limit_exceeded:
            return CandidateRejected(Status.CRASHED, self.process.limit_exceeded)
        if stage == "build":
            return CandidateRejected(Status.BUILD_FAILED, message)
        if stage == "outputs":
            return CandidateRejected(Status.WRONG, message)
        if stage in _CANDIDATE_STAGES:
            if message.startswith("out of memory"):
                event = f"ran {message}"
            else:
                event = message if message.startswith("called sys.exit(") else f"raised {message}"
            return CandidateRejected(Status.CRASHED, f"{_CANDIDATE_STAGES[stage]} {event}")
        return CandidateRejected(Status.CRASHED, f"{_PHASES.get(stage, stage)}: {message}")

    def prepare(self, seconds: float, **settings: Any) -> None:
        """Before a call: the child drops its last output. `settings`: see CandidateServer.prepare."""
        self.take_turn()
        self.process.thaw()
        self.request({"op": "prepare", **settings}, seconds)

    def prepare_round(self, seconds: float, **settings: Any) -> None:
        """As `prepare`, for timed calls: also call once on old inputs, which warms code and caches."""
        stale = random.randrange(len(self.regions))
        self.prepare(seconds, warm=True, set=stale, retain=self.retained_outputs, **settings)

    def take_turn(self) -> None:
        """If memory is short, let the process that was called last free its memory."""
        if self.turns:
            self.turns.take(self)

    def keep_caches(self) -> None:
        """Flush no cache before further calls, because they are not timed."""
        self._flusher = Flusher(self.device, 0)

    def unmap_outputs(self) -> None:
        """Release the mappings of earlier outputs: the driver frees only memory that nobody has mapped."""
        self._reader.close()

    def release_memory(self, seconds: float) -> None:
        """Let the child drop its outputs and free the memory that its allocator holds."""
        self.unmap_outputs()
        self.process.thaw()
        self.request({"op": "release_memory"}, seconds)
        self.process.freeze()

    # --- loops ---------------------------------------------------------------------------------------

    def start_loop(self, sets: int, batch: int) -> None:
        """Start calls on the first `sets` buffer sets in turn, after `prepare`, until `stop_loop`.

        The child checks for the request to stop after each `batch` of calls.
        """
        self.process.thaw()
        self._active_loop = (sets, time.perf_counter())
        self.send({"op": "loop", "sets": sets, "batch": batch})

    def stop_loop(self, spec: OutputSpec, seconds: float) -> LoopResult:
        """Stop the loop; the child is frozen afterwards."""
        sets, begun = self._active_loop
        if self.process.channel.has_data():
            self.receive("loop", seconds)  # raises if the loop failed
            raise CandidateRejected(Status.CHEATING, "it ended a loop of calls before it was told to")
        requested = time.perf_counter()
        self.send({"op": "stop_loop"})
        reply = self.receive("loop", seconds)
        ended = time.perf_counter()
        self.receive("stop_loop", seconds)
        self.process.freeze()
        calls, descriptions = reply.get("calls"), reply.get("outputs")
        if (
            type(calls) is not int
            or calls < 1
            or not isinstance(descriptions, list)
            or len(descriptions) != min(calls, sets)
        ):
            raise CandidateRejected(Status.CHEATING, "the reply to 'loop' was forged")
        claims = [parse_claims(description, spec) for description in descriptions]
        return LoopResult(calls, ended - begun, ended - requested, claims)

    def loop_output(
        self, loop: LoopResult, buffer_set: int, inputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The output of the loop's last call on a buffer set that held `inputs`; the child is frozen."""
        outputs = self._read(loop.claims[buffer_set])
        self._check_inputs_unmodified(buffer_set, inputs)
        return outputs

    # --- buffers -------------------------------------------------------------------------------------

    def write_inputs(self, buffer_set: int, inputs: list[torch.Tensor]) -> None:
        """Copy inputs into one buffer set."""
        raw = self.regions[buffer_set].raw
        for slot, tensor in zip(self.slots, inputs, strict=True):
            slot.view(raw).copy_(tensor)

    def _read(self, claims: list[Claim]) -> list[torch.Tensor]:
        """The outputs in the memory that the child claims holds them."""
        try:
            return [self._reader.read(slot, handle) for slot, handle in claims]
        except OutputUnreadable as error:
            raise CandidateRejected(Status.CHEATING, str(error)) from None

    def _check_inputs_unmodified(self, buffer_set: int, inputs: list[torch.Tensor]) -> None:
        raw = self.regions[buffer_set].raw
        for index, (slot, tensor) in enumerate(zip(self.slots, inputs, strict=True)):
            if not same_bits(slot.view(raw), tensor):
                raise CandidateRejected(
                    Status.WRONG, f"modifies its input {index}, which the reference does not modify"
                )

    # --- the process ---------------------------------------------------------------------------------

    def _freeze(self) -> None:
        if not self.process.freeze() and not self.trusted:
            raise CandidateRejected(Status.CHEATING, "it keeps running when it is stopped (SIGSTOP)")

    def close(self) -> None:
        """Kill the process and release its mappings."""
        self.process.kill()
        self._reader.close()

    def close_in_background(self) -> threading.Thread:
        """For a child that has succeeded: release its mappings now, and kill it while the next one loads."""
        self._reader.close()
        thread = threading.Thread(target=self.process.kill)
        thread.start()
        return thread


_CANDIDATE_STAGES = {"call": "forward", "construct": "constructing ModelNew: ModelNew()"}
_PHASES = {
    "start": "starting",
    "load": "loading the candidate",
    "add_variant": "loading it with other values of its tunables",
    "keep_model": "while the next design was loaded",
    "race": "in a race of variants",
    "copy_state": "setting its parameters",
    "import": "importing the candidate",
    "construct": "constructing ModelNew",
    "map_inputs": "mapping the inputs",
    "prepare": "between two calls",
    "release_memory": "while it freed memory between two calls",
    "call": "in forward",
    "loop": "in forward, called in a loop",
    "stop_loop": "after being called in a loop",
    "damages": "after a call",
    "kernel_times": "while its kernels were timed",
    "compile_variants": "compiling the baselines",
    "tune": "compiling the baselines",
    "compiled_source": "compiling the reference",
    "trace": "while being traced",
    "sustain": "while being called in a loop",
    "observe": "while being profiled",
    "disassemble": "while its machine code was read",
}
"""What the child was doing, by the name of the request."""
