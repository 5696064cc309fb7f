"""The workbench of a task: reference, inputs, shared memory, the device's ceilings, and children at work.

What judging and profiling have in common. The seed, the oracle and the inputs' recipe stay in this process.
"""

from __future__ import annotations

import io
import os
import random
import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.exclusive import without_compilers
from kernelpro.lab.judge.oracle import Oracle
from kernelpro.lab.machine import cpu_name
from kernelpro.lab.measure import environment, physics
from kernelpro.lab.measure.bursts import MOST_CALLS
from kernelpro.lab.measure.participant import PLACES, Flusher, Participant
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.sandbox.answers import CandidateRejected, Expected
from kernelpro.lab.sandbox.builds import Builds
from kernelpro.lab.sandbox.cell import Limits, SandboxLauncher
from kernelpro.lab.sandbox.memory import Region, layout
from kernelpro.lab.tasks import paths, work
from kernelpro.lab.tasks.reference import Reference, unload
from kernelpro.records import BadInput, Candidate, Options, Status, Target, Task, folders

_CACHE_SHARE = 0.2
_COMPILER = ("torch._dynamo",)
"""What torch.compile imports: three of the four seconds that it takes to compile what is in its cache."""
_BURST_SHARE = 0.15
"""Of free device memory, for buffer sets and as many outputs."""


class Bench:
    """Set up once for a task on one device; `close` cleans up at any point."""

    def __init__(
        self, task: Task, target: Target, options: Options, nursery: SandboxLauncher, builds: Builds
    ):
        self.task, self.target, self.options = task, target, options
        self.nursery, self.builds = nursery, builds
        self.preparation = Stopwatch()
        self._regions: list[Region] = []
        self._candidate_regions: list[Region] = []

    def open(self, report: Callable[[str], None]) -> None:
        """Load the reference, measure the device. Bad input is raised."""
        with self.preparation("load"):
            report("loading the reference")
            if self.target == "cuda":
                if not torch.cuda.is_available():
                    raise BadInput(
                        "no CUDA device is visible to torch here: use --target cpu, or run where there is a GPU"
                    )
                torch.zeros(1, device="cuda")
            self.seed = secrets.randbits(48)
            self.secret = random.Random(secrets.token_bytes(16))
            self.reference = Reference(self.task, self.target, self.seed)
            if how := self.reference.differs_from_asker():
                why = (
                    "something that it reads was changed since; make that an input, an attribute or a buffer"
                )
                raise BadInput(
                    f"task {self.task.name}: it does not compute in a worker what it does where it was given ({how}): {why}"
                )
            self.precision = self.reference.precision()
            dtype = self.reference.dtype() if self.precision == "native" else torch.float32
            self.unit = physics.unit(self.target, self.precision, dtype)
            self.oracle = Oracle(self.reference, int(_CACHE_SHARE * self._free_bytes()))
            seed = self.new_seed()
            self._form, leaves = self.oracle.inputs(seed)
            self._slots, self._region_bytes = layout(leaves)
            self.expected = Expected(self.oracle.output_shapes(seed))
        with self.preparation("ceilings"):
            report("measuring the device")
            self.work = work.count(self.reference, self.new_seed())
            self.measure_ceilings()
            self._flusher = Flusher(self.target, self.ceilings.cache_bytes)

    def measure_ceilings(self) -> None:
        name = environment.snapshot(self.target).get("gpu") or cpu_name()
        self.ceilings = physics.measured(self.target, name, self.unit)
        self.floor_ms = physics.floor_ms(self.work, self.ceilings, self.unit)

    def quiet(self) -> AbstractContextManager[None]:
        """While something is timed: nothing of ours runs beside it on the same silicon."""
        return without_compilers() if self.target == "cpu" else nullcontext()

    def new_seed(self) -> int:
        return self.secret.getrandbits(48)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        return self.oracle.inputs(seed)[1]

    @property
    def most_calls(self) -> int:
        """Buffer sets of a candidate: as many calls can be made in a row on fresh inputs."""
        return len(self._candidate_regions)

    def _free_bytes(self) -> int:
        if self.target == "cuda":
            return int(torch.cuda.mem_get_info()[0])
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _region(self) -> Region:
        region = Region(self.target, self._region_bytes)
        self._regions.append(region)
        return region

    def _sets(self, most: int) -> int:
        """So many buffer sets as there is room for; a CPU, whose calls are made one by one, needs one."""
        each = self._region_bytes + self.expected.nbytes
        return (
            max(1, min(most, int(_BURST_SHARE * self._free_bytes() / each))) if self.target == "cuda" else 1
        )

    def _allocated(self, sets: int) -> list[Region]:
        """So many buffer sets, or none."""
        regions: list[Region] = []
        try:
            for _ in range(sets):
                regions.append(self._region())
        except BaseException:  # also Ctrl-C: nothing stays allocated
            self.release(regions)
            raise
        return regions

    def release(self, regions: list[Region]) -> None:
        """Give back the buffers of one who needs them no more."""
        for region in regions:
            self._regions.remove(region)
            region.close()

    def _fill(self, regions: list[Region]) -> None:
        """Warm calls use what is there: never inputs that no caller would give."""
        inputs = self.inputs(self.new_seed())
        for region in regions:
            region.wipe()
            for slot, tensor in zip(self._slots, inputs, strict=True):
                slot.view(region.raw).copy_(tensor)

    def start_request(self) -> dict[str, Any]:
        return {
            "op": "start",
            "device": self.target,
            "threads": torch.get_num_threads(),
            "tf32": self.precision == "tf32",
        }

    def admit_reference(self, variants: Collection[str], sets: int | None = None) -> Participant:
        """A child for the reference itself, which may keep what compilers make for it; with buffers for inputs, or none."""
        cache = _compiler_cache()
        places = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        modules = _COMPILER if any(not name.startswith("eager") for name in variants) else ()
        environment = places | _threads() | paths.passed_on()
        regions = self._allocated(self._sets(PLACES) if sets is None else sets)
        try:
            if regions:
                self._fill(regions)
            cell = self.nursery.start(
                "baseline", shared=_fds(regions), environment=environment, trusted=[cache], modules=modules
            )
        except BaseException:  # also Ctrl-C: nothing stays allocated
            self.release(regions)
            raise
        return Participant(cell, self.target, regions, self._form, self._slots, self._flusher, trusted=True)

    def admit(self, role: str = "candidate", allow: tuple[str, ...] = ()) -> Participant:
        """A fresh child in its cell, started, with nothing of the candidate in it yet. `allow`: see Nursery.start."""
        if (
            self.target == "cpu"
        ):  # a file keeps more than its bytes (times, attributes, a position): none is for the next child
            self.release(self._candidate_regions)
            self._candidate_regions = []
        if not self._candidate_regions:
            self._candidate_regions = self._allocated(max(2, self._sets(MOST_CALLS)))
        memory = int(self.options.memory_gib * 2**30) or int(
            0.75 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        )
        limits = Limits(memory, address_space=self.target == "cpu")
        cell = self.nursery.start(role, limits, _fds(self._candidate_regions), _threads(), allow=allow)
        participant = Participant(
            cell, self.target, self._candidate_regions, self._form, self._slots, self._flusher
        )
        try:
            participant.ask(self.start_request(), self.options.call_timeout)
        except BaseException:  # also Ctrl-C: no child is left behind
            participant.close()
            raise
        return participant

    def load_request(self, candidate: Candidate) -> tuple[dict[str, Any], bytes]:
        """What a child is told and given to load a candidate; builds it where that has not been done."""
        leaves: list[torch.Tensor] = []
        form = tree.pack(self.reference.init_inputs, leaves)
        artifacts = self.builds.get(candidate, self.target, self.options, self.task)
        buffer = io.BytesIO()
        bundle = {
            "artifacts": artifacts,
            "init_form": form,
            "init_leaves": leaves,
            "state": self.reference.state(),
        }
        torch.save(bundle, buffer)
        return {
            "op": "load",
            "source": candidate.source,
            "seed": self.seed,
            "mode": self.task.mode,
        }, buffer.getvalue()

    def load(self, participant: Participant, candidate: Candidate) -> Any:
        """Load the candidate and map its inputs; returns how its parameters were given. Nothing of the last one is alive."""
        self._fill(self._candidate_regions)
        request, tail = self.load_request(candidate)
        answer = participant.ask(request, self.options.build_timeout, tail)
        given = answer.get("parameters")
        if given not in ("by name", "by seed", "none"):
            raise CandidateRejected(Status.CHEATING, "the answer to 'load' was forged")
        weights = {
            name: list(tensor.shape)
            for name, tensor in self.reference.state().items()
            if tensor.is_floating_point()
        }
        if (
            given == "by seed" and self.task.form == "module" and weights
        ):  # no seed makes the weights that it brings
            held = ", ".join(f"{name} {shape}" for name, shape in weights.items())
            why = f"the module's own weights are given by name, and some do not fit the candidate's: the module has {held[:500]}"
            raise CandidateRejected(Status.WRONG, why)
        participant.connect(self.options.call_timeout)
        return given

    def close(self) -> None:
        for region in self._regions:
            region.close()
        unload(self.task)


def _fds(regions: list[Region]) -> tuple[int, ...]:
    return tuple(region.fd for region in regions if region.fd is not None)


def _threads() -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def _compiler_cache() -> str:
    """Kept between runs: the reference is the user's own and trusted."""
    path = folders.cache("compiled")
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
