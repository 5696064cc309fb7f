"""Checks that a candidate stays inside its buffers, by calls with guards around them (sandbox/guards.py).

 1. A fresh sandbox starts beside the timed one. Every buffer in it lies between two margins. It loads the
    candidate after the candidate has passed in the timed sandbox.
 2. The judge calls the candidate once for each fill of the margins. The parent checks the margins of the
    inputs, the child those of parameters, outputs and scratch buffers. Then the output is checked against
    the oracle.
 3. Up to _MORE_CALLS further calls follow, on inputs of other distributions and with another fill. The
    outputs of some are checked, too. Then all margins are checked again.
 4. An overwritten margin, parameter or buffer, or an output that is wrong only here, makes the candidate
    `wrong`.
 5. One more call uses a batch size that the task does not name (unseen_shape.py). It does not change the
    status.

Other failures here (an allocator that the candidate requires is missing, memory is short, or the calls take
much longer than in the timed process) do not reject the candidate: the verdict gets a note. The timed process
has no guards, so guards do not affect times.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from kernelpro.lab.judge.unseen_shape import UnseenCall
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.profile import sanitizer
from kernelpro.lab.sandbox import cpu_guards
from kernelpro.lab.sandbox.guards import (
    FAULT,
    FILLS,
    LATER_FILL,
    MARGIN_BYTES,
    Damage,
    InputMargins,
    parse_damages,
)
from kernelpro.lab.sandbox.memory import Region, layout
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import CannotStart
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import Candidate, Status, UnseenShape

Check = Callable[[list[torch.Tensor], int, str], object]
"""Raises CandidateRejected if the outputs are wrong for the inputs of a seed and a distribution."""
_FAULT = re.compile(rf"{FAULT} (after|before) (\d+) (\d+)")
_MEMORY_CRASH = re.compile(
    r"^(in forward|between two calls|after ).*killed by SIG(SEGV|BUS|ABRT|TRAP)|illegal memory access"
)
_ILLEGAL_ACCESS = re.compile(r"illegal memory access")
_MAX_REASON = 300
_MAX_KEPT_BYTES = 1 << 30
"""On a GPU, input memory up to this size stays allocated for the next candidate."""
_MORE_CALLS, _MORE_SECONDS = 6, 0.3
"""Further guarded calls, nine in total, and fewer if they take long: generated kernels that use buffers in
turn have two to eight of them."""
_MORE_CHECKED = 3
"""Of these calls, so many have their outputs checked: those on infinities, on padded rows, and either on
equal rows or on rows with an offset."""
_MIN_SECONDS, _TIMES_AS_LONG = 20.0, 2.0
"""Time limit for all guarded calls: so long, or a multiple of what loading and verification took in the timed
process. torch's CUDA graph trees do not work with another allocator: a kernel that catches their error and
compiles again in each call took over 200 s."""
_NOT_CHECKED = "the kernel could not be checked for writes out of bounds"
_UNGUARDED = {
    "cpu": "only inputs were checked for writes out of bounds: there is no C++ compiler",
    "cuda": "only inputs were checked for writes out of bounds: torch's allocator cannot be replaced",
}


def prepare(target: str) -> None:
    """Build the library that the guards need, once per machine."""
    if target == "cpu":
        cpu_guards.build_library()


class _TimeIsUp(Exception):
    """The guarded calls take too long."""


class GuardedCalls:
    """The guarded calls of one candidate. The process starts at once, in the background."""

    def __init__(self, bench: Bench, inputs: Sequence[tuple[int, str]]):
        """`inputs`: seeds and distributions."""
        self._bench, self._inputs = bench, [pair for pair in inputs if pair[1] == AS_GIVEN]
        self._options, self._deadline = bench.options, time.monotonic()
        self._unusual = [pair for pair in inputs if pair[1] != AS_GIVEN]
        self._failure = ""
        self._participant: Participant | None = None
        self._is_clean = False
        """All guarded calls gave right outputs and left margins and parameters intact."""
        self._settings = ""
        """Global settings of torch that the candidate changed, in words."""
        self._slots, self._region_bytes = layout(bench.oracle.inputs(*self._inputs[0])[1], MARGIN_BYTES)
        self._regions: list[Region] = []
        if bench.target == "cpu":  # a process receives its shared files when it starts
            self._regions = bench.guarded_regions(self._region_bytes)
        self._thread = threading.Thread(target=self._start)
        self._thread.start()

    def _start(self) -> None:
        try:
            library = cpu_guards.build_library() if self._bench.target == "cpu" else b""
            self._participant = self._bench.start_guarded(self._regions, self._slots, library)
        except (CandidateRejected, CannotStart, torch.OutOfMemoryError) as error:
            self._failure = str(error)

    def wait_until_started(self) -> None:
        """Wait until the process has started, so that its start does not disturb the timed process."""
        self._thread.join()

    def check(
        self, candidate: Candidate, check: Check, keep_own_values: bool = False, usual_seconds: float = 0.0
    ) -> str:
        """Raise CandidateRejected if the candidate leaves its buffers or depends on memory it did not write.

        Return a note if it could not be checked, or not completely; else "". `keep_own_values`: see
        CandidateLoader.load. `usual_seconds`: what loading and verification took without guards.
        """
        self.wait_until_started()
        options, limit = self._bench.options, max(_MIN_SECONDS, _TIMES_AS_LONG * usual_seconds)
        self._options = replace(
            options,
            call_timeout=min(options.call_timeout, limit),
            build_timeout=min(options.build_timeout, limit),
        )
        if self._failure or self._participant is None:
            return f"{_NOT_CHECKED}: {self._failure}"
        try:
            if not self._regions:  # on a GPU: after the timed process has its memory
                self._regions += self._bench.guarded_regions(self._region_bytes)
            self._bench.loader.load(self._participant, candidate, self._options, keep_own_values)
            self._participant.map_inputs(self._options.call_timeout)
            self._participant.keep_caches()
            self._deadline = time.monotonic() + limit
            self._call(self._participant, check)
            self._is_clean = True
        except _TimeIsUp:
            return f"{_NOT_CHECKED} in all guarded calls: they take more than {limit:.0f} s"
        except CandidateRejected as error:
            return _explain(error, self._participant)
        except torch.OutOfMemoryError as error:
            return f"{_NOT_CHECKED}: {error}"
        unguarded = "" if self._participant.is_guarded else _UNGUARDED[self._bench.target]
        changes = f"changes {self._settings} for all code of its process" if self._settings else ""
        return "; ".join(filter(None, (unguarded, changes)))

    def try_unseen(self, call: UnseenCall | None) -> UnseenShape | None:
        """Call the candidate with another batch size, after `check`; None if that is not possible."""
        participant = self._participant
        if call is None or participant is None or not self._is_clean:
            return None
        if call.nbytes > participant.regions[0].nbytes:
            return None
        try:
            self._call_unseen(participant, call)
        except (CandidateRejected, torch.OutOfMemoryError) as error:
            reason = (str(error).splitlines() or ["it failed"])[0][:_MAX_REASON]
            return UnseenShape(call.shape, call.batch, False, reason)
        return UnseenShape(call.shape, call.batch, True)

    def _call_unseen(self, participant: Participant, call: UnseenCall) -> None:
        seconds, (fill, input_fill, _) = self._options.call_timeout, FILLS
        region = participant.regions[0]
        participant.process.thaw()
        participant.use_slots(call.slots, seconds)
        participant.prepare(seconds, fill=fill)
        margins = InputMargins(call.slots, region.nbytes)
        margins.fill(region.raw, input_fill)
        with participant.may_compile(self._options.build_timeout):
            result = participant.call(call.inputs, call.spec, seconds)
        _require_intact(margins.damages(region.raw, input_fill) + self._reported_damages(participant))
        call.check(result.outputs)

    def explain(self, error: CandidateRejected, candidate: Candidate, check: Check) -> CandidateRejected:
        """The error. If it is a memory fault in `forward`, or after it where memory is freed, guarded calls
        add which access was out of bounds."""
        if not (error.status is Status.CRASHED and _MEMORY_CRASH.search(error.reason)):
            return error
        try:
            self.check(candidate, check)
        except CandidateRejected as found:
            return CandidateRejected(error.status, f"{error.reason}; {found.reason}")
        return error

    def _call(self, participant: Participant, check: Check) -> None:
        bench, options, raw = self._bench, self._options, participant.regions[0].raw
        margins = InputMargins(self._slots, participant.regions[0].nbytes)
        for index, (seed, distribution) in enumerate(self._inputs):
            fill, input_fill = FILLS[index % len(FILLS)], FILLS[(index + 1) % len(FILLS)]
            participant.unmap_outputs()  # each call's outputs lie in new memory
            participant.prepare(options.call_timeout, fill=fill)
            # inputs get another byte: else a kernel that copies past the end of its input into the output's
            # margin would write the expected byte there
            margins.fill(raw, input_fill)
            inputs = bench.oracle.inputs(seed, distribution)[1]
            with participant.may_compile(options.build_timeout if index == 0 else None):
                result = participant.call(inputs, bench.output_spec, options.call_timeout)
            # margins first: an overwritten one explains a wrong output
            _require_intact(margins.damages(raw, input_fill) + self._reported_damages(participant))
            with _blaming_fills(fill, input_fill):
                check(result.outputs, seed, distribution)
            if time.monotonic() > self._deadline:
                raise _TimeIsUp
        wrong: CandidateRejected | None = None
        try:
            self._call_again(participant, margins, check)
        except _WrongOutput as error:
            wrong = error
        _require_intact(margins.damages(raw, LATER_FILL) + self._reported_damages(participant))
        if wrong:
            raise wrong

    def _call_again(self, participant: Participant, margins: InputMargins, check: Check) -> None:
        """A few more calls: buffers that are used in turn go wrong where they wrap around, an index that
        depends on values leaves its buffer only for some, a kernel that skips padding leaves its output
        unwritten only there, and one that adds to memory changes only LATER_FILL. The most extreme values
        come first."""
        seconds, begun, unusual = self._options.call_timeout, time.monotonic(), self._unusual[::-1]
        participant.unmap_outputs()
        participant.prepare(seconds, fill=LATER_FILL)
        margins.fill(participant.regions[0].raw, LATER_FILL)
        if self._bench.target == "cuda":
            torch.cuda.synchronize()
        for number in range(_MORE_CALLS):
            inputs = self._bench.oracle.inputs(*unusual[number])[1] if number < len(unusual) else None
            if inputs and number < _MORE_CHECKED:
                participant.unmap_outputs()
                participant.prepare(seconds)
                result = participant.call(inputs, self._bench.output_spec, seconds)
                with _blaming_fills(LATER_FILL, LATER_FILL):
                    check(result.outputs, *unusual[number])
            else:
                if inputs:
                    participant.write_inputs(0, inputs)
                    if self._bench.target == "cuda":
                        torch.cuda.synchronize()
                participant.prepare(seconds, warm=True)
            if time.monotonic() - begun > _MORE_SECONDS:
                return

    def _reported_damages(self, participant: Participant) -> list[Damage]:
        """Damages that the child reports; raises CandidateRejected where it modified the reference's
        parameters or buffers."""
        bench = self._bench
        participant.process.thaw()
        reply = participant.request({"op": "damages"}, self._options.call_timeout)
        try:
            damages = parse_damages(reply.get("damages"))
            modified, settings = (_parse_names(reply.get(key)) for key in ("modified", "settings"))
        except ValueError:
            raise CandidateRejected(Status.CHEATING, "the reply to 'damages' was forged") from None
        self._settings = ", ".join(settings)[:_MAX_REASON]
        names = [name for name in modified if name in bench.reference.state()]
        # a write out of bounds explains more
        if names and not damages and (names := sorted({*names} - bench.oracle.modified_state())):
            what = ", ".join(names)[:_MAX_REASON]
            raise CandidateRejected(
                Status.WRONG, f"modifies its parameter or buffer {what}, which the reference does not modify"
            )
        return damages

    def close(self, close: Callable[[Participant], None]) -> None:
        """End the process, with `close` unless its memory has to be freed."""
        self.wait_until_started()
        if self._participant is None:
            return
        if self._bench.target == "cuda" and self._region_bytes > _MAX_KEPT_BYTES:
            self._participant.close()  # now: no process may map the memory when it is freed
            self._bench.release_guarded_regions()
        else:
            close(self._participant)


def sanitize(bench: Bench, candidate: Candidate, report: Callable[[str], None]) -> list[str]:
    """Run a GPU candidate under compute-sanitizer.

    Raises CandidateRejected for invalid accesses and barriers. Returns notes on races and on reads of
    unwritten memory, which may be harmless.
    """
    if bench.target != "cuda":
        return []
    errors = sanitizer.find_defects(bench, candidate, report)
    for tool in ("memcheck", "synccheck"):
        if tool in errors:
            raise CandidateRejected(Status.WRONG, errors[tool])
    return list(errors.values())


class _WrongOutput(CandidateRejected):
    """An output is wrong only in guarded calls."""


@contextmanager
def _blaming_fills(fill: int, input_fill: int) -> Iterator[None]:
    """An output that is wrong in this block depends on what the judge wrote around and into buffers."""
    try:
        yield
    except CandidateRejected as error:
        raise _WrongOutput(
            error.status,
            f"its result depends on memory that it did not write, or on memory outside its buffers "
            f"(filled with 0x{fill:02X}, around inputs with 0x{input_fill:02X}): {error.reason}",
        ) from None


def _parse_names(names: object) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("not a list of names")
    return names


def _require_intact(damages: list[Damage]) -> None:
    if damages:
        others = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
        raise CandidateRejected(Status.WRONG, f"writes out of bounds: {damages[0]}{others}")


def _explain(error: CandidateRejected, participant: Participant) -> str:
    """Raise if the failure shows an access out of bounds; return a note for any other failure."""
    if error.status is Status.WRONG:
        raise error
    if error.status is Status.CRASHED and _ILLEGAL_ACCESS.search(error.reason):
        raise CandidateRejected(Status.WRONG, f"accesses memory out of bounds: {error.reason[:_MAX_REASON]}")
    if error.status is Status.CRASHED and (fault := _FAULT.search(participant.process.log_tail())):
        edge = "after the end" if fault[1] == "after" else "before the start"
        raise CandidateRejected(
            Status.WRONG,
            f"accesses memory out of bounds: {fault[2]} bytes {edge} of a buffer of {fault[3]} bytes",
        )
    return f"{_NOT_CHECKED}: {error.reason[:_MAX_REASON]}"
