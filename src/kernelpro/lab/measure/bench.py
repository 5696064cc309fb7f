"""The workbench of a task: reference, oracle, shared memory, the device's ceilings, and the processes under
test.

Judging, profiling and energy measurement share it. The seed, the oracle and the recipe of the inputs stay in
this process.
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
from kernelpro.lab.measure import environment, physics
from kernelpro.lab.measure.cpu_participant import CpuParticipant
from kernelpro.lab.measure.cuda_participant import BUFFER_SETS, MAX_BUFFER_SETS, CudaParticipant
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.participant import Flusher, Participant
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.sandbox.builds import Builds, compiler_variables
from kernelpro.lab.sandbox.completion import CompletionPage
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.memory import Region, Slot, layout
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import ResourceLimits, SandboxedProcess
from kernelpro.lab.tasks import paths, work
from kernelpro.lab.tasks.reference import Reference, unload
from kernelpro.records import BadInput, Candidate, Options, Status, Target, Task, folders

_ORACLE_MEMORY_SHARE = 0.2
_COMPILER_MODULES = ("torch._dynamo",)
"""What torch.compile imports: three of the four seconds that a compilation from its cache takes."""
_BUFFER_MEMORY_SHARE = 0.15
"""Share of the free device memory for buffer sets and as many outputs."""


class Bench:
    """Set up once for a task on one device; `close` cleans up at any point."""

    def __init__(
        self, task: Task, target: Target, options: Options, launcher: SandboxLauncher, builds: Builds
    ):
        self.task, self.target, self.options = task, target, options
        self.launcher, self.builds = launcher, builds
        self.preparation = Stopwatch()
        self._regions: list[Region] = []
        self._candidate_regions: list[Region] = []
        self._guarded_regions: list[Region] = []

    def open(self, report: Callable[[str], None]) -> None:
        """Load the reference and measure the device. Raises BadInput."""
        with self.preparation("load"):
            report("loading the reference")
            if self.target == "cuda":
                if not torch.cuda.is_available():
                    raise BadInput(
                        "no CUDA device is visible to torch: use --target cpu, or run on a host with a GPU"
                    )
                torch.zeros(1, device="cuda")
            self.seed = secrets.randbits(48)
            self.secret = random.Random(secrets.token_bytes(16))
            self.reference = Reference(self.task, self.target, self.seed)
            if difference := self.reference.example_mismatch():
                raise BadInput(
                    f"task {self.task.name}: it computes something else in a worker than in your process "
                    f"({difference}): a value that it reads has changed since; make that value an input, "
                    "an attribute or a buffer"
                )
            self.precision = self.reference.precision()
            dtype = self.reference.dtype() if self.precision == "native" else torch.float32
            self.unit = physics.compute_unit(self.target, self.precision, dtype)
            self.oracle = Oracle(self.reference, int(_ORACLE_MEMORY_SHARE * self._free_bytes()))
            seed = self.new_seed()
            self._form, leaves = self.oracle.inputs(seed)
            self._slots, self._region_bytes = layout(leaves)
            self.output_spec = self.oracle.output_spec(seed)
        with self.preparation("ceilings"):
            report("measuring the device")
            self.work, self.operators = work.count(self.reference, self.new_seed())
            self.measure_ceilings()
            self._flusher = Flusher(self.target, self.ceilings.cache_bytes)

    def measure_ceilings(self) -> None:
        """The device's ceilings, and the task's floor under them."""
        name = environment.snapshot(self.target).device
        self.ceilings = physics.load_ceilings(self.target, name, self.unit)
        self.floor_ms = physics.floor_ms(self.work, self.ceilings, self.unit)

    def quiet(self) -> AbstractContextManager[None]:
        """A context for timing: on a CPU none of our compilers runs meanwhile."""
        return without_compilers() if self.target == "cpu" else nullcontext()

    def new_seed(self) -> int:
        """A seed that no candidate can predict."""
        return self.secret.getrandbits(48)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        """The tensors of the inputs for a seed."""
        return self.oracle.inputs(seed)[1]

    @property
    def candidate_buffer_sets(self) -> int:
        """A candidate's buffer sets: so many calls can follow each other on fresh inputs."""
        return len(self._candidate_regions)

    def _free_bytes(self) -> int:
        if self.target == "cuda":
            return int(torch.cuda.mem_get_info()[0])
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _region(self) -> Region:
        region = Region(self.target, self._region_bytes)
        self._regions.append(region)
        return region

    def _buffer_set_count(self, limit: int) -> int:
        """As many buffer sets as memory allows; a CPU, whose calls are made one by one, needs one."""
        if self.target == "cpu":
            return 1
        size = self._region_bytes + self.output_spec.nbytes
        return max(1, min(limit, int(_BUFFER_MEMORY_SHARE * self._free_bytes() / size)))

    def _allocate_regions(self, sets: int) -> list[Region]:
        """So many buffer sets; on an error none stays allocated."""
        regions: list[Region] = []
        try:
            for _ in range(sets):
                regions.append(self._region())
        except BaseException:  # Ctrl-C too
            self.release_regions(regions)
            raise
        return regions

    def release_regions(self, regions: list[Region]) -> None:
        """Free buffers that no process uses any more."""
        for region in regions:
            self._regions.remove(region)
            region.close()

    def _fill_regions(self, regions: list[Region]) -> None:
        """Clear the buffers and write valid inputs: warm calls use what is there."""
        inputs = self.inputs(self.new_seed())
        for region in regions:
            region.clear()
            for slot, tensor in zip(self._slots, inputs, strict=True):
                slot.view(region.raw).copy_(tensor)

    def start_request(self) -> dict[str, Any]:
        """The first request to every child."""
        return {
            "op": "start",
            "device": self.target,
            "threads": torch.get_num_threads(),
            "tf32": self.precision == "tf32",
        }

    def start_reference(self, variants: Collection[str], buffer_sets: int | None = None) -> Participant:
        """A process for the reference, which may keep its compilers' caches; with buffers for inputs, or
        none."""
        cache = _compiler_cache_dir()
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        modules = _COMPILER_MODULES if any(not name.startswith("eager") for name in variants) else ()
        environment = caches | _thread_variables() | paths.child_environment()
        count = self._buffer_set_count(BUFFER_SETS) if buffer_sets is None else buffer_sets
        regions, page = self._allocate_regions(count), self._completion_page()
        try:
            if regions:
                self._fill_regions(regions)
            process = self.launcher.start(
                "baseline",
                shared_fds=_file_descriptors(regions, page),
                environment=environment,
                trusted_dirs=[cache],
                preload_modules=modules,
            )
        except BaseException:  # Ctrl-C too
            self.release_regions(regions)
            if page:
                page.close()
            raise
        return self._participant(process, regions, page, trusted=True)

    def _completion_page(self) -> CompletionPage | None:
        return CompletionPage() if self.target == "cuda" else None

    def _participant(
        self,
        process: SandboxedProcess,
        regions: list[Region],
        page: CompletionPage | None,
        trusted: bool = False,
        slots: list[Slot] | None = None,
    ) -> Participant:
        arguments = process, regions, self._form, slots or self._slots, self._flusher, trusted
        return CudaParticipant(*arguments, page=page) if page else CpuParticipant(*arguments)

    def start_candidate(self, role: str = "candidate", allowed_syscalls: tuple[str, ...] = ()) -> Participant:
        """A fresh sandboxed process with nothing of the candidate in it yet. `allowed_syscalls`: for
        profilers."""
        if self.target == "cpu":
            # a file keeps more than its bytes (times, attributes, a position): the next child gets new ones
            self.release_regions(self._candidate_regions)
            self._candidate_regions = []
        if not self._candidate_regions:
            self._candidate_regions = self._allocate_regions(max(2, self._buffer_set_count(MAX_BUFFER_SETS)))
        participant = self._start_participant(role, self._candidate_regions, None, allowed_syscalls)
        try:
            participant.request(self.start_request(), self.options.call_timeout)
        except BaseException:  # Ctrl-C too: no child is left behind
            participant.close()
            raise
        return participant

    def _start_participant(
        self,
        role: str,
        regions: list[Region],
        slots: list[Slot] | None,
        allowed_syscalls: tuple[str, ...] = (),
    ) -> Participant:
        memory = int(self.options.memory_gib * 2**30) or int(
            0.75 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        )
        page = self._completion_page()
        try:
            process = self.launcher.start(
                role,
                ResourceLimits(memory, address_space=self.target == "cpu"),
                _file_descriptors(regions, page),
                _thread_variables() | compiler_variables(self.target),
                allowed_syscalls=allowed_syscalls,
            )
        except BaseException:  # Ctrl-C too
            if page:
                page.close()
            raise
        return self._participant(process, regions, page, slots=slots)

    def guarded_regions(self, nbytes: int) -> list[Region]:
        """Memory for the inputs of guarded calls, with margins around them."""
        if self.target == "cpu":  # see start_candidate
            self.release_guarded_regions()
        if not self._guarded_regions:
            region = Region(self.target, nbytes)
            self._regions.append(region)
            self._guarded_regions = [region]
        self._guarded_regions[0].clear()
        return list(self._guarded_regions)

    def release_guarded_regions(self) -> None:
        """Free that memory; no process uses it any more."""
        self.release_regions(self._guarded_regions)
        self._guarded_regions = []

    def start_guarded(self, regions: list[Region], slots: list[Slot]) -> Participant:
        """A fresh process for calls with guards; it has not been asked to start."""
        return self._start_participant("guarded", regions, slots)

    def load_request(self, candidate: Candidate) -> tuple[dict[str, Any], bytes]:
        """The request that loads a candidate, and its tail; builds the candidate first if necessary."""
        leaves: list[torch.Tensor] = []
        form = tree.flatten(self.reference.init_inputs, leaves)
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

    def load_candidate(self, participant: Participant, candidate: Candidate) -> Any:
        """Load the candidate and map its inputs; returns how its parameters were set. The last candidate has
        ended."""
        if participant.regions is self._candidate_regions:
            self._fill_regions(self._candidate_regions)
        request, tail = self.load_request(candidate)
        with participant.may_compile(self.options.build_timeout):
            parameters = participant.request(request, self.options.call_timeout, tail).get("parameters")
        if parameters not in ("by name", "by seed", "none"):
            raise CandidateRejected(Status.CHEATING, "the reply to 'load' was forged")
        weights = {
            name: list(tensor.shape)
            for name, tensor in self.reference.state().items()
            if tensor.is_floating_point()
        }
        # a live module brings weights that no seed reproduces
        if parameters == "by seed" and self.task.form == "module" and weights:
            listed = ", ".join(f"{name} {shape}" for name, shape in weights.items())
            raise CandidateRejected(
                Status.WRONG,
                "the module's own weights are set by name, and some names or shapes of the candidate differ: "
                f"the module has {listed[:500]}",
            )
        participant.map_inputs(self.options.call_timeout)
        return parameters

    def close(self) -> None:
        """Free all buffers and unload the task."""
        for region in self._regions:
            region.close()
        unload(self.task)


def _file_descriptors(regions: list[Region], page: CompletionPage | None) -> tuple[int, ...]:
    """Those of the regions on a CPU, of the completion page on a GPU."""
    return (*(region.fd for region in regions if region.fd is not None), *((page.fd,) if page else ()))


def _thread_variables() -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def _compiler_cache_dir() -> str:
    """Kept between runs: the reference is the user's own and trusted."""
    path = folders.cache("compiled")
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
