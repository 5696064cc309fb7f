"""One side of a timing: a cell with its own input buffers, called under the protocol.

A call, in steps:
 1. the child drops its last output and, in timed rounds, calls the model once on stale inputs, so that
    the host's path is warm; it is frozen;
 2. the parent writes the inputs into one of the child's buffer sets and flushes the cache; the order to go lies ready
    when the child wakes, so that nothing can be won between waking and being told;
 3. the clock starts; the child is thawed;
 4. it says that it is done and where its output lies;
 5. on the CPU a few elements are sampled at once, the clock stops, the child is frozen, and the
    whole output is read and held against the samples; on the GPU the child is frozen, its output is
    copied by the parent, and the clock stops when the copy is complete: work that is still running
    either delays the copy or is missing from it.

Half of the calls on a GPU are sealed: the clock starts, the inputs are written, and then the child may go. So a head start lies
within the clock, on a GPU, where kernels run on while the child stands still. Where it can be, such a call is launched ahead: the
child launches all of it behind a gate that its device waits for, and says so before the clock starts; when the inputs are
written, the device opens the gate. What a host needs to launch a call is then no part of its time. A call that waits for the
device before all of it is launched cannot be made so; it is told when its inputs are there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.measure.timing import Sample
from kernelpro.lab.sandbox.answers import Answer, Burst, CandidateRejected, Expected, Loop, validated
from kernelpro.lab.sandbox.cell import MOST_PROCESSES, SandboxedProcess
from kernelpro.lab.sandbox.memory import DeviceReader, HostReader, Region, Slot, Unreadable
from kernelpro.lab.sandbox.wire import Garbled, Gone, Late
from kernelpro.records import Status

_LONGEST_MESSAGE = 6000
_AWAKE_SECONDS = 0.1
_LAUNCH_SECONDS = 0.05
"""More launches than a stream takes (about a thousand) are made in less."""
TRIES = 3
"""Calls of which one must have been launched ahead, for others to be: a host may be late."""
_ISSUE_CYCLES = 600_000
"""0.3 ms on an H200: writing inputs and flushing the cache are issued in less."""
_RESTLESS_MS = 0.05
"""CPU time that stopping itself may take."""
PLACES = 8
"""Where inputs and outputs lie makes 1 % of a kernel's time on an H200 (a transpose's): rounds are made in so many places."""


class Flusher:
    """Empties the last-level cache by writing twice its size."""

    def __init__(self, device: str, cache_bytes: int):
        size = 2 * cache_bytes if device == "cuda" else min(2 * cache_bytes, 128 << 20)
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def flush(self) -> None:
        self._buffer.zero_()


class Participant:
    def __init__(
        self,
        cell: SandboxedProcess,
        device: str,
        regions: list[Region],
        form: tree.Form,
        slots: list[Slot],
        flusher: Flusher,
        trusted: bool = False,
    ):
        """`trusted`: nobody looks for what else it may have started or taken."""
        self.cell, self.device, self.regions, self._slots, self._trusted = (
            cell,
            device,
            regions,
            slots,
            trusted,
        )
        self._flusher = flusher
        self._reader: Any = DeviceReader() if device == "cuda" else HostReader(cell.pid)
        self.ran_ms: list[float] = []
        """For each call on the CPU, the time for which the cell ran while it was stopped before; it counts as the call's. On a GPU
        it says nothing: the host has little to do, and sealed calls show what was launched."""
        self._form = form
        self.copies = False
        """Outputs of its bursts are copies, because they shared memory."""
        self.ahead = False
        """Its calls can be launched before their inputs are there."""
        self.launched = False
        """The last one that was to be, was."""
        self._gates = 0
        self._looping = (0, 0.0)
        """Buffer sets and beginning of the loop under way."""

    def connect(self, seconds: float) -> None:
        """Map the input regions in the child."""
        regions = [{"nbytes": region.nbytes, "handle": region.handle} for region in self.regions]
        slots, gate = [s.to_json() for s in self._slots], self.regions[0].gate
        answer = self.ask(
            {"op": "inputs", "regions": regions, "slots": slots, "form": self._form, "gate": gate}, seconds
        )
        self.ahead = answer.get("gated") is True and self.regions[0].has_gate()

    def ask(self, request: dict[str, Any], seconds: float, tail: bytes = b"") -> dict[str, Any]:
        """Send one request and return the answer; whatever goes wrong is a verdict."""
        self.tell(request, tail)
        return self.hear(request["op"], seconds)

    def tell(self, request: dict[str, Any], tail: bytes = b"") -> None:
        try:
            self.cell.channel.send(request, tail)
        except Gone:
            raise CandidateRejected(Status.CRASHED, self._obituary(request["op"])) from None

    def hear(self, operation: str, seconds: float) -> dict[str, Any]:
        try:
            answer, _ = self.cell.channel.receive(seconds)
        except Late:
            if len(self.cell.family()) > MOST_PROCESSES:
                how = f"it started more than {MOST_PROCESSES} processes and was killed"
                raise CandidateRejected(Status.CRASHED, f"{_WORDS[operation]}: {how}") from None
            raise CandidateRejected(
                Status.TIMED_OUT, f"{_WORDS[operation]}: took more than {seconds:g} s and was killed"
            ) from None
        except Gone:
            raise CandidateRejected(Status.CRASHED, self._obituary(operation)) from None
        except Garbled as error:
            raise CandidateRejected(
                Status.CHEATING, f"the answer to '{operation}' was forged: {error}"
            ) from None
        if answer.get("ok") is not True:
            raise self._failure(answer)
        return answer

    def _obituary(self, operation: str) -> str:
        how = self.cell.how_it_ended()
        last = [line for line in self.cell.log_tail().splitlines() if line.strip()]
        said = f"; last words: {last[-1][:300]}" if last else ""
        return f"{_WORDS[operation]}: the process {how}{said}"

    def _failure(self, answer: dict[str, Any]) -> CandidateRejected:
        stage, message = str(answer.get("stage")), str(answer.get("error"))[:_LONGEST_MESSAGE]
        if self.cell.overrun:
            return CandidateRejected(Status.CRASHED, self.cell.overrun)
        if stage == "build":
            return CandidateRejected(Status.BUILD_FAILED, message)
        if stage in _AUTHORED:
            how = message if message.startswith("called sys.exit(") else f"raised {message}"
            return CandidateRejected(Status.CRASHED, f"{_AUTHORED[stage]} {how}")
        return CandidateRejected(Status.CRASHED, f"{_WORDS.get(stage, stage)}: {message}")

    def prepare(self, seconds: float, **extra: Any) -> None:
        self.cell.thaw()
        self.ask({"op": "prepare", **extra}, seconds)

    @property
    def kept(self) -> int:
        """On a GPU the last few outputs of timed calls stay, so that each lies in another place."""
        return min(PLACES, len(self.regions)) - 1 if self.device == "cuda" else 0

    def prepare_round(self, seconds: float, **extra: Any) -> None:
        """Before a timed call."""
        self.prepare(seconds, warm=True, keep=self.kept, **extra)

    def call(
        self,
        inputs: list[torch.Tensor],
        expected: Expected,
        seconds: float,
        sealed: bool = False,
        ahead: bool = False,
    ) -> Answer:
        """One call under the protocol, after `prepare`. `ahead`: a sealed one is launched before its inputs are there."""
        chosen = random.randrange(len(self.regions))
        if self.device == "cuda":
            self.cell.freeze_main()  # its processes were seen to after the last call; sealed calls tell whether one helps
        else:
            self._freeze()
            self.cell.spread()
        before = self._ran()
        if not sealed:
            self._fill(chosen, inputs)
        self._wait_for_device()
        ran = self._ran() - before
        ran = ran if ran > _RESTLESS_MS else 0.0
        if self.device == "cuda":
            self._reader.make_room(expected.sizes)
        filling = 0.0
        if sealed:
            begun, filling = self._call_sealed(chosen, inputs, ahead)
        else:
            self.tell({"op": "call", "set": chosen})
            begun = time.perf_counter()
            self.cell.thaw()
        if self.device == "cpu":
            self.cell.release()
            answer = self.hear("call", seconds)
        else:
            answer = self._hear_result("call", seconds)
        slots = validated(answer, expected)
        try:
            if self.device == "cuda":
                self.cell.freeze_main()
                outputs = [self._reader.read(slot, handle) for slot, handle in slots]
                told = time.perf_counter()
                self._halt()
            else:
                samples = [self._reader.peek(slot) for slot, _ in slots]
                told = (
                    time.perf_counter()
                )  # right after the first look at the output: who can make that wait gains nothing
                self._freeze()
                outputs = [self._reader.read(slot) for slot, _ in slots]
                self._hold_against(outputs, samples)
        except Unreadable as error:
            raise CandidateRejected(Status.CHEATING, str(error)) from None
        self._check_unmodified(chosen, inputs)
        self.ran_ms.append(ran)
        own, wall = float(answer["own_ms"]) + ran, 1e3 * (told - begun) + ran
        return Answer(outputs, Sample(own, wall, sealed, float(answer["native_ms"]), 1e3 * filling), slots)

    def _call_sealed(self, chosen: int, inputs: list[torch.Tensor], ahead: bool) -> tuple[float, float]:
        """Have inputs written after the clock has started; returns when it did, and how long they took in a call launched ahead."""
        call = {"op": "call", "set": chosen}
        if ahead:
            begun, filled = self._behind_the_gate(call, lambda: self._fill(chosen, inputs))
            return begun, filled - begun
        self.cell.thaw()
        begun = time.perf_counter()
        self._fill(chosen, inputs)
        self._wait_for_device()
        self.tell(call)
        return begun, 0.0

    def _behind_the_gate(self, request: dict[str, Any], fill: Callable[[], None]) -> tuple[float, float]:
        """Have the child launch what is told; once it has, or cannot, `fill`, and then its device may begin.

        Returns when `fill` began and when it was done, by the device's clock: a child that waits may keep the device for its slice
        of time (2 ms on an H200, mostly where several streams wait), and `fill` begins that much later, which is nobody's doing.
        `fill` is issued while the device sleeps, so that it mostly does not pause in between and lose the device again.
        """
        self._gates += 1
        begun, filled, opened = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        try:
            self.tell(request | {"gate": self._gates})
            self.cell.thaw()
            self.launched = self._has_launched(request["op"])
            torch.cuda._sleep(_ISSUE_CYCLES)  # type: ignore[no-untyped-call]
            begun.record()
            fill()
            filled.record()
        finally:  # whatever happens: a device that waits for ever helps nobody
            now = time.perf_counter()
            self.regions[0].open_gate(self._gates)
        opened.record()
        while not opened.query():  # type: ignore[no-untyped-call]  # a parent that is kept from looking does not make the call shorter
            now = time.perf_counter()
        return now - 1e-3 * begun.elapsed_time(opened), now - 1e-3 * filled.elapsed_time(opened)

    def _has_launched(self, operation: str) -> bool:
        self.cell.channel.look_out(_LAUNCH_SECONDS)
        if not self.cell.channel.waiting():
            return False
        if self.hear(operation, _LAUNCH_SECONDS).get("launched") is not True:
            raise CandidateRejected(Status.CHEATING, f"the answer to '{operation}' was forged")
        return True

    def _hear_result(self, operation: str, seconds: float) -> dict[str, Any]:
        self.cell.channel.look_out(_AWAKE_SECONDS)
        answer = self.hear(operation, seconds)
        return self.hear(operation, seconds) if answer.get("launched") is True else answer  # that came late

    def burst(
        self, batch: list[list[torch.Tensor]], expected: Expected, seconds: float, ahead: bool = False
    ) -> Burst | None:
        """Several calls in a row (CUDA), after `prepare`; the clock stops when the last output has been read. `ahead`: they are
        launched before their inputs are there, and before the clock starts.

        All buffer sets are written, however many calls: the longer a child stands still, the later it wakes up.
        None, once: its outputs share memory, and from now on it copies them.
        """
        places = random.sample(range(len(self.regions)), len(self.regions))
        sets = places[: len(batch)]
        self._reader.make_room(expected.sizes)
        request = {"op": "burst", "sets": sets, "total": len(self.regions)}
        self.launched = False
        if ahead:
            begun = self._behind_the_gate(request, lambda: self._fill_all(places, batch))[1]
        else:
            self.cell.freeze_main()
            self._fill_all(places, batch)
            self._wait_for_device()
            self.tell(request)
            begun = time.perf_counter()
            self.cell.thaw()
        answer = self._hear_result("burst", seconds)
        if answer.get("again") is True and not self.copies:
            self.copies = True
            return None
        claims, host = answer.get("outputs"), answer.get("host_ms")
        if not isinstance(claims, list) or len(claims) != len(self.regions) or not isinstance(host, float):
            raise CandidateRejected(Status.CHEATING, "the description of the output was forged")
        *earlier, newest = claims[: len(batch)]
        try:
            slots = [validated({"own_ms": 1.0, "native_ms": 0.0, "outputs": newest}, expected)]
            self.cell.freeze_main()
            last = [self._reader.read(slot, handle) for slot, handle in slots[-1]]
            told = time.perf_counter()
            self._halt()
            slots = [
                validated({"own_ms": 1.0, "native_ms": 0.0, "outputs": claim}, expected) for claim in earlier
            ] + slots
            held = [(slot.offset, handle) for call in slots for slot, handle in call if slot.span()]
            if len(set(held)) < len(held):
                raise CandidateRejected(
                    Status.CHEATING, "outputs of different calls are said to lie in the same place"
                )
            outputs = [[self._reader.read(slot, handle) for slot, handle in call] for call in slots[:-1]] + [
                last
            ]
        except Unreadable as error:
            raise CandidateRejected(Status.CHEATING, str(error)) from None
        for chosen, inputs in zip(sets, batch, strict=True):
            self._check_unmodified(chosen, inputs)
        return Burst(outputs, 1e3 * (told - begun), host, self.launched)

    @property
    def sets(self) -> int:
        return len(self.regions)

    def start_loop(self, sets: int, batch: int) -> None:
        """Calls on the first `sets` buffer sets in turn, looking up after each `batch`; after `prepare`, until `stop_loop`."""
        self.cell.thaw()
        self._looping = (sets, time.perf_counter())
        self.tell({"op": "loop", "sets": sets, "batch": batch})

    def stop_loop(self, expected: Expected, seconds: float) -> Loop:
        sets, begun = self._looping
        if self.cell.channel.waiting():
            self.hear("loop", seconds)  # tells what went wrong, if something did
            raise CandidateRejected(Status.CHEATING, "it stopped making calls before it was told to")
        told = time.perf_counter()
        self.tell({"op": "stop"})
        answer = self.hear("loop", seconds)
        ended = time.perf_counter()
        self.hear("stop", seconds)
        self.cell.freeze()
        calls, claims = answer.get("calls"), answer.get("outputs")
        if (
            type(calls) is not int
            or calls < 1
            or not isinstance(claims, list)
            or len(claims) != min(calls, sets)
        ):
            raise CandidateRejected(Status.CHEATING, "the account of a loop was forged")
        slots = [validated({"own_ms": 1.0, "native_ms": 0.0, "outputs": claim}, expected) for claim in claims]
        return Loop(calls, ended - begun, ended - told, slots)

    def looped_output(self, loop: Loop, chosen: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the last call on one buffer set gave, which held these inputs; the child stands still."""
        try:
            if self.device == "cuda":
                outputs = [self._reader.read(slot, handle) for slot, handle in loop.claims[chosen]]
            else:
                outputs = [self._reader.read(slot) for slot, _ in loop.claims[chosen]]
        except Unreadable as error:
            raise CandidateRejected(Status.CHEATING, str(error)) from None
        self._check_unmodified(chosen, inputs)
        return outputs

    def look_again(self, answer: Answer) -> None:
        """The frozen child's output must still be what it was: nothing may finish late."""
        if self.device != "cuda":
            return
        for before, (slot, handle) in zip(answer.outputs, answer.slots, strict=True):
            if not torch.equal(_bits(before), _bits(self._reader.read(slot, handle))):
                raise CandidateRejected(Status.CHEATING, "the output changed after it was handed over")

    def _freeze(self) -> None:
        if not self.cell.freeze() and not self._trusted:
            raise CandidateRejected(Status.CHEATING, "it does not stand still when it is stopped")

    def _halt(self) -> None:
        """A child that is alone is told to stop: on a GPU the host has little to do. What it started is seen to stand still."""
        if not self._trusted and self.cell.halt() > 1:
            self._freeze()

    def _fill_all(self, places: list[int], batch: list[list[torch.Tensor]]) -> None:
        for place, inputs in zip(places, cycle(batch), strict=False):
            self.write(place, inputs)
        self._flusher.flush()

    def _fill(self, chosen: int, inputs: list[torch.Tensor]) -> None:
        self.write(chosen, inputs)
        self._flusher.flush()

    def write(self, chosen: int, inputs: list[torch.Tensor]) -> None:
        """Inputs into one buffer set."""
        raw = self.regions[chosen].raw
        for slot, tensor in zip(self._slots, inputs, strict=True):
            slot.view(raw).copy_(tensor)

    def _ran(self) -> float:
        return self.cell.ran_ms() if self.device == "cpu" else 0.0

    def _wait_for_device(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _hold_against(self, outputs: list[torch.Tensor], samples: list[dict[int, bytes]]) -> None:
        for output, early in zip(outputs, samples, strict=True):
            whole = torch.empty(0, dtype=torch.uint8).set_(output.untyped_storage())
            for place, seen in early.items():
                if bytes(whole[place : place + len(seen)].tolist()) != seen:
                    raise CandidateRejected(
                        Status.CHEATING, "the output was still changing after the call had returned"
                    )

    def _check_unmodified(self, chosen: int, inputs: list[torch.Tensor]) -> None:
        raw = self.regions[chosen].raw
        for index, (slot, tensor) in enumerate(zip(self._slots, inputs, strict=True)):
            if not torch.equal(_bits(slot.view(raw)), _bits(tensor)):
                raise CandidateRejected(
                    Status.WRONG, f"modifies its input {index}, which the reference leaves alone"
                )

    def close(self) -> None:
        self.cell.kill()
        self._reader.close()

    def close_in_background(self) -> threading.Thread:
        """For a child that ended well: give its memory back now, and let it die while the next one is loaded."""
        self._reader.close()
        killer = threading.Thread(target=self.cell.kill)
        killer.start()
        return killer


def device_bytes_of_others() -> int:
    """Device memory in use that is not this process's through torch."""
    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"][
        "current"
    ]  # memory_reserved takes ten times as long
    return int(total - free - own)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, so that NaN equals itself; eight at a time where they go up, which is compared faster."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return flat.view(torch.int64) if flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0 else flat


_AUTHORED = {"call": "forward", "construct": "constructing ModelNew: ModelNew()"}
_WORDS = {
    "start": "starting",
    "load": "loading the candidate",
    "import": "importing the candidate",
    "construct": "constructing ModelNew",
    "inputs": "mapping the inputs",
    "prepare": "between two calls",
    "call": "in forward",
    "burst": "in forward, called several times in a row",
    "loop": "in forward, called again and again",
    "stop": "after being called again and again",
    "profile": "while being profiled",
    "rehearse": "compiling the baselines",
    "seed": "compiling the reference",
    "trace": "while being traced",
    "sustain": "while being called again and again",
    "watch": "while being watched",
    "disassemble": "while its machine code was read",
}
