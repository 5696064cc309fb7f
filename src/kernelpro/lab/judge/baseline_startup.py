"""Starts the baselines of a task in the background: they compile while the judge derives the tolerance.

Compilers may take long. Meanwhile the judge calls the first candidate once, so that a candidate that never
ends is rejected after its own time limit instead of after the compilers have finished, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import CannotStart
from kernelpro.records import BadInput, Candidate, Status

_POLL_SECONDS = 0.005
_SOON_SECONDS = 1.0
"""Compilers that find their code in a cache finish within this time."""


class BaselineStartup:
    """Baselines that are starting and compiling."""

    def __init__(self, bench: Bench, start: Callable[[], Baselines]):
        """`start` starts them and their compilers."""
        self._bench, self._start = bench, start
        self._tried = False
        """Whether a candidate ran beside the compilers."""
        self._begin()

    def _begin(self) -> None:
        self._baselines: Baselines | None = None
        self._error: BadInput | CannotStart | torch.OutOfMemoryError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._baselines = self._start()
        except (BadInput, CannotStart, torch.OutOfMemoryError) as error:
            self._error = error

    def will_take_long(self) -> bool:
        """Whether the compilers need longer than _SOON_SECONDS, for which this waits."""
        deadline = time.monotonic() + _SOON_SECONDS
        while time.monotonic() < deadline:
            if not self._thread.is_alive() and (not self._baselines or self._baselines.are_compiled()):
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def try_meanwhile(self, candidate: Candidate) -> None:
        """Call the candidate once, in its own process; raises CandidateRejected if that takes too long.

        Other failures are ignored: the checks that follow report them.
        """
        self._tried = True
        bench, seconds = self._bench, self._bench.options.call_timeout
        try:
            participant = bench.start_candidate()
            try:
                bench.load_candidate(participant, candidate)
                participant.prepare(seconds, collect=True)
                with participant.may_compile(bench.options.build_timeout):
                    participant.call(bench.inputs(bench.new_seed()), bench.output_spec, seconds)
            finally:
                participant.close()
        except CandidateRejected as error:
            if error.status is Status.TIMED_OUT:
                raise
        except torch.OutOfMemoryError:
            pass
        bench.start_spares(("candidate",))

    def wait(self) -> None:
        """Wait until the compilers have finished, or until one of them has to measure on the device."""
        self._thread.join()
        try:
            if self._baselines:
                self._baselines.await_compilers()
        except BadInput as error:
            self._error = error

    def finish(self) -> Baselines:
        """Finish compiling and return the baselines; nothing else may use the device meanwhile.

        Raises BadInput, CannotStart or torch.OutOfMemoryError. If the baselines failed while a candidate ran
        beside them and may have taken their memory, they are started again.
        """
        self._bench.await_spares()
        try:
            baselines = self._finish()
            failed = bool(baselines.finish_compiling())
        except (BadInput, CannotStart, torch.OutOfMemoryError):
            if not self._tried:
                raise
            failed = True
        if failed and self._tried:
            self._tried = False
            self.close()
            self._begin()
            return self.finish()
        return baselines

    def _finish(self) -> Baselines:
        self.wait()
        if self._error:
            raise self._error
        assert self._baselines
        return self._baselines

    def close(self) -> None:
        """Stop the process of the baselines."""
        self._thread.join()
        if self._baselines:
            self._baselines.close()


def start_baselines(bench: Bench, notes: list[str]) -> BaselineStartup:
    """Start the reference in its sandbox. Notes on baselines that are left out are appended to `notes`."""
    options = bench.options
    variants = [name for name in options.baselines if bench.target == "cuda" or name != "eager_tf32"]
    if not any(name.startswith("eager") for name in variants):
        variants.insert(0, "eager_fp32")
    with bench.preparation("start baselines"):
        regions, load = bench.reference_regions(), bench.loader.reference_request()

    def start() -> Baselines:
        baselines = Baselines(
            bench.launch_reference(variants, regions),
            list(variants),
            bench.output_spec,
            bench.inputs,
            options.build_timeout,
            options.call_timeout,
            notes,
            has_all_memory=bench.plan.layout.takes_turns,
        )
        try:
            baselines.start_compiling(bench.start_request(), *load)
        except BaseException:  # no child is left behind
            baselines.close()
            raise
        return baselines

    return BaselineStartup(bench, start)
