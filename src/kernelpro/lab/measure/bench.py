"""The bench of a task: reference, oracle, shared memory, the device's ceilings, and the processes under test.

Judging, profiling and energy measurement share it. The seeds, the oracle and the code that makes the inputs
stay in this process.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kernelpro.lab import heap, tree
from kernelpro.lab.exclusive import without_compilers
from kernelpro.lab.measure import device_memory, environment, physics
from kernelpro.lab.measure.cpu_participant import CpuParticipant
from kernelpro.lab.measure.cuda_participant import CudaParticipant
from kernelpro.lab.measure.loading import CandidateLoader, LoadedParameters
from kernelpro.lab.measure.memory_plan import GB, Shortage, TaskSizes, plan_memory
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.measure.participant import Flusher, Participant
from kernelpro.lab.measure.process_settings import (
    are_compiled,
    candidate_limits,
    compiler_cache_dir,
    file_descriptors,
    thread_variables,
)
from kernelpro.lab.measure.spares import Spares
from kernelpro.lab.measure.stopwatch import Stopwatch
from kernelpro.lab.measure.turns import Turns
from kernelpro.lab.sandbox.builds import Builds, compiler_variables
from kernelpro.lab.sandbox.completion import CompletionPage
from kernelpro.lab.sandbox.guards import MARGIN_BYTES
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.memory import Region, Slot, layout
from kernelpro.lab.sandbox.outputs import OutputSpec
from kernelpro.lab.sandbox.process import SandboxedProcess
from kernelpro.lab.tasks import batches, paths, work
from kernelpro.lab.tasks.reference import Reference, unload
from kernelpro.records import BadInput, Candidate, Options, Target, Task

COMPILER_MODULES = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._functorch._aot_autograd.autograd_cache",
)
"""Modules that torch.compile imports. That takes four of the five seconds of a compilation from its cache."""
_MAX_PLANS = 4
"""Attempts to plan memory: if the float64 run takes more than planned, another plan allows for it."""
_MEASURED_SLACK = 1.1
_FLOAT64_BYTES = 8
_ROOM_FACTOR = 2  # a guarded call takes more than the reference: margins, and buffers that are not reused


class Bench:
    """Everything that is set up once per task and device. `close` may be called at any point."""

    def __init__(
        self,
        task: Task,
        target: Target,
        options: Options,
        launcher: SandboxLauncher,
        builds: Builds,
        shortage: Shortage = Shortage(),  # noqa: B008 (frozen)
    ):
        self.task, self.target, self.options = task, target, options
        self._shortage = shortage
        self._ballast: device_memory.Ballast | None = None
        self.launcher, self.builds = launcher, builds
        self.preparation = Stopwatch()
        self.turns = Turns(enabled=False, seconds=options.call_timeout)
        self._spares = Spares()
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
                device_memory.avoid_fragmentation()
                if are_compiled(self.options.baselines):
                    self.launcher.preload(COMPILER_MODULES)  # on a CPU it would disturb the ceilings
                torch.zeros(1, device="cuda")
            self._ballast = device_memory.Ballast(self.target)
            self.seed = secrets.randbits(48)
            self.secret = random.Random(secrets.token_bytes(16))
            self.reference = Reference(self.task, self.target, self.seed)
            self.loader = CandidateLoader(self.reference, self.builds)
            if difference := self.reference.example_mismatch():
                raise BadInput(
                    f"task {self.task.name}: it computes something else in a worker than in your process "
                    f"({difference}): a value that it reads has changed; make that value an input, "
                    "an attribute or a buffer"
                )
            self.precision = self.reference.precision()
            dtype = self.reference.dtype() if self.precision == "native" else torch.float32
            self.unit = physics.compute_unit(self.target, self.precision, dtype)
            self.oracle = Oracle(self.reference)
            seed = self.new_seed()
            self._form, leaves = self.oracle.inputs(seed)
            self.shape = batches.describe_sizes(leaves)
            self._slots, self._region_bytes = layout(leaves)
            self._guarded_bytes = layout(leaves, MARGIN_BYTES)[1]
            with device_memory.measured_peak(self.target) as peak:
                self.output_spec = self._run_reference(seed)
            sizes = self._sizes(leaves, peak.nbytes)
            del leaves
        with self.preparation("ceilings"):
            report("measuring the device")
            self.free_own_memory()
            self.work, self.operators = work.count(self.reference, self.new_seed())
            self.measure_ceilings()
            self._flusher = Flusher(self.target, self.ceilings.cache_bytes)
        with self.preparation("oracle"):
            report("planning memory")
            self._plan_memory(sizes, seed)

    def measure_ceilings(self) -> None:
        """Measure the device's ceilings, and compute the task's floor from them."""
        name = environment.snapshot(self.target).device
        self.ceilings = physics.load_ceilings(self.target, name, self.unit)
        self.floor_ms = physics.floor_ms(self.work, self.ceilings, self.unit)

    def quiet(self) -> AbstractContextManager[None]:
        """A context for timing, in which none of our compilers runs: on a CPU they end, on a GPU's host they
        are paused."""
        return without_compilers() if self.target == "cpu" else self.builds.background.paused()

    def new_seed(self) -> int:
        """A seed that no candidate can predict."""
        return self.secret.getrandbits(48)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        """The input tensors for a seed."""
        return self.oracle.inputs(seed)[1]

    def find_resizing(self, seed: int) -> batches.Resizing | None:
        """How to resize the inputs of a seed to another batch size; None if the reference accepts none.

        Also None for a reference that may index the batch on a GPU: an index out of range there makes every
        later call of this process fail.
        """
        names = (operator.name for operator in self.operators)
        if self.target == "cuda" and any(map(batches.INDEXING.search, names)):
            return None
        form, leaves = self.oracle.inputs(seed)
        model = self.reference.model()  # a model of its own: it may store something of the size of the batch

        def run(cut: list[torch.Tensor]) -> list[torch.Tensor]:
            outputs: list[torch.Tensor] = []
            with torch.no_grad():
                tree.flatten(model(*tree.unflatten(form, [leaf.clone() for leaf in cut])), outputs)
            return outputs

        return batches.find_resizing(run, leaves)

    # --- memory --------------------------------------------------------------------------------------

    def _run_reference(self, seed: int) -> OutputSpec:
        free = device_memory.free_bytes(self.target)
        try:
            return self.oracle.output_spec(seed)
        except torch.OutOfMemoryError:
            raise BadInput(
                f"task {self.task.name}: one call of the reference does not fit into the {free / GB:.1f} GB "
                f"of memory that are free beside its inputs ({self._region_bytes / GB:.1f} GB): end other "
                "processes, or use smaller sizes"
            ) from None

    def _sizes(self, leaves: list[torch.Tensor], peak: int) -> TaskSizes:
        outputs, parameters = self.output_spec.nbytes, self.reference.state_bytes()
        peak = max(peak, self._region_bytes + outputs + parameters)
        types = [leaf.dtype for leaf in leaves] + [dtype for _, dtype in self.output_spec.tensors]
        size = min((dtype.itemsize for dtype in types if dtype.is_floating_point), default=_FLOAT64_BYTES)
        widening = _FLOAT64_BYTES / size
        exact_call, on_device = int((peak - parameters) * widening), bool(self.reference.init_device)
        return TaskSizes(self._region_bytes, outputs, parameters, peak, exact_call, widening, on_device)

    def _plan_memory(self, sizes: TaskSizes, seed: int) -> None:
        """Plan how to use the free memory, and choose how the oracle computes. Raises BadInput."""
        # memory that this process holds now is part of the plan
        self.free_own_memory()
        self._call_bytes = sizes.peak
        held = torch.cuda.memory_allocated() if self.target == "cuda" else sizes.parameters
        free = device_memory.free_bytes(self.target, held)
        sliceable, fits = True, False
        for _ in range(_MAX_PLANS):
            flush, short = self._flusher.nbytes, self._shortage
            self.plan = plan_memory(self.task.name, sizes, free, self.target, flush, sliceable, short)
            if self.plan.layout.slices > 1 and not self.oracle.can_slice:
                sliceable = self._find_slicing(seed)
                if not sliceable:
                    continue
            needed = self._try_oracle(seed, sizes)
            fits = needed is not None
            assumed = sizes.exact_call // self.plan.layout.slices
            if needed is not None and needed <= _MEASURED_SLACK * assumed:
                break
            needed = needed or 2 * assumed
            sizes = replace(sizes, exact_call=needed * self.plan.layout.slices)
        if not fits:
            self.oracle.use_own_type(sizes.exact_peak)
        self.oracle.set_cache_bytes(self.plan.cache_bytes)
        self.turns = Turns(self.plan.layout.takes_turns, self.options.call_timeout)
        self.free_own_memory()

    def _find_slicing(self, seed: int) -> bool:
        try:
            return self.oracle.find_slicing(seed)
        except torch.OutOfMemoryError:  # another process took the memory
            return False

    def _try_oracle(self, seed: int, sizes: TaskSizes) -> int | None:
        """Run the oracle once as planned; returns the bytes that it took beside its parameters, or None if
        memory ran out."""
        layout = self.plan.layout
        self.oracle.use_slices(layout.slices)
        if not layout.exact:
            self.oracle.use_own_type(sizes.exact_peak)
            return 0
        self.oracle.load_exact_model()
        with device_memory.measured_peak(self.target) as peak:
            self.oracle.compute_first_slice(seed)
        if isinstance(self.oracle.float64_error, torch.OutOfMemoryError):
            self.oracle.retry_float64()
            return None
        return peak.nbytes if self.oracle.exact else 0

    def free_own_memory(self) -> None:
        """Free memory for other processes: what the judge does not need now, and that of the child whose turn
        it was."""
        self.oracle.forget_inputs()
        self.turns.take(None)
        if self.target == "cuda":
            torch.cuda.empty_cache()
        else:
            heap.trim()

    def has_room_for_a_call(self, peak_bytes: int) -> bool:
        """Whether the free memory suffices for another process to load and call a candidate that has used
        `peak_bytes`."""
        needed = _ROOM_FACTOR * max(peak_bytes, self._call_bytes) + GB
        return self.target == "cpu" or torch.cuda.mem_get_info()[0] > needed

    @property
    def flush_bytes(self) -> int:
        """Bytes that a flush of the last-level cache writes."""
        return self._flusher.nbytes

    @property
    def max_burst_calls(self) -> int:
        """The most calls of a burst that fit into memory; 0 if bursts do not fit."""
        return self.plan.burst_calls

    @property
    def candidate_buffer_sets(self) -> int:
        """The number of a candidate's buffer sets."""
        return self.plan.layout.candidate_sets

    def _region(self) -> Region:
        nbytes = self._guarded_bytes if self._shares_regions else self._region_bytes
        region = Region(self.target, nbytes)
        self._regions.append(region)
        return region

    def _allocate_regions(self, sets: int) -> list[Region]:
        """Allocate `sets` buffer sets; after an error none stays allocated."""
        regions: list[Region] = []
        try:
            for _ in range(sets):
                regions.append(self._region())
        except BaseException:  # Ctrl-C too
            self.release_regions(regions)
            raise
        return regions

    def release_regions(self, regions: list[Region]) -> None:
        """Free buffers that no process uses anymore."""
        for region in regions:
            self._regions.remove(region)
            region.close()

    def _fill_regions(self, regions: list[Region]) -> None:
        """Clear the buffers and write valid inputs, which warm-up calls use."""
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
        """A process for the reference, which keeps its compilers' caches; with `buffer_sets` sets of input
        buffers (None: as planned)."""
        regions = self.reference_regions(buffer_sets)
        try:
            return self.launch_reference(variants, regions)
        except BaseException:  # Ctrl-C too
            if regions is not self._candidate_regions:
                self.release_regions(regions)
            raise

    def launch_reference(self, variants: Collection[str], regions: list[Region]) -> Participant:
        """As `start_reference`, with these buffers. Thread-safe."""
        cache = compiler_cache_dir()
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        if are_compiled(variants):
            self.launcher.preload(COMPILER_MODULES)
        environment = caches | thread_variables() | paths.child_environment()
        page = self._completion_page()
        try:
            process = self.launcher.start(
                "baseline",
                shared_fds=file_descriptors(regions, page),
                environment=environment,
                trusted_dirs=[cache],
                preloaded=are_compiled(variants),
            )
        except BaseException:  # Ctrl-C too
            if page:
                page.close()
            raise
        return self._participant(process, regions, page, trusted=True)

    def _completion_page(self) -> CompletionPage | None:
        return CompletionPage() if self.target == "cuda" else None

    def reference_regions(self, count: int | None = None) -> list[Region]:
        """`count` new buffer sets, filled with inputs (None: as planned; may be the candidate's own)."""
        if count is None and self._shares_regions:
            self._require_candidate_regions()
            regions = self._candidate_regions
        else:
            regions = self._allocate_regions(self.plan.layout.baseline_sets if count is None else count)
        if regions:
            self._fill_regions(regions)
        if regions and self.target == "cuda":
            regions[0].supports_gate()  # call it in this thread: another thread may launch the process
        if self.plan.layout.takes_turns:
            self.free_own_memory()  # compilers need as much memory as a call
        return regions

    @property
    def _shares_regions(self) -> bool:
        """Whether baselines and guarded calls use the candidate's buffers."""
        return not self.plan.layout.baseline_sets

    def _require_candidate_regions(self) -> None:
        if not self._candidate_regions:
            self._candidate_regions = self._allocate_regions(self.candidate_buffer_sets)

    def _participant(
        self,
        process: SandboxedProcess,
        regions: list[Region],
        page: CompletionPage | None,
        trusted: bool = False,
        slots: list[Slot] | None = None,
    ) -> Participant:
        arguments = process, regions, self._form, slots or self._slots, self._flusher, trusted
        participant = CudaParticipant(*arguments, page=page) if page else CpuParticipant(*arguments)
        participant.turns = self.turns
        return participant

    def start_candidate(self, role: str = "candidate", allowed_syscalls: tuple[str, ...] = ()) -> Participant:
        """A fresh sandboxed process that has not loaded the candidate yet. `allowed_syscalls`: for
        profilers."""
        if self.target == "cpu":
            # a file carries more than its bytes (times, attributes, a position): each child gets new files
            self.release_regions(self._candidate_regions)
            self._candidate_regions = []
        self._require_candidate_regions()
        if self.target == "cuda":
            torch.cuda.empty_cache()  # memory that the judge does not use is for the candidate
        if role == "candidate" and (spare := self._take_spare(role)):
            spare.regions = self._candidate_regions
            return spare
        return self._start_process(role, self._candidate_regions, None, allowed_syscalls)

    def start_spares(self, roles: Collection[str] = ("candidate", "guarded")) -> None:
        """Start the next candidate's processes in the background while the task is prepared."""
        if self.target == "cuda" and not self.options.memory_gib:
            for role in roles:
                self._spares.begin(role, partial(self._start_process, role, [], None))

    def await_spares(self) -> None:
        """Wait until the spares have started: nothing may be timed before."""
        self._spares.wait()

    def _take_spare(self, role: str) -> Participant | None:
        return None if self.options.memory_gib else self._spares.take(role)  # spares have no memory limit

    def _start_process(
        self,
        role: str,
        regions: list[Region],
        slots: list[Slot] | None,
        allowed_syscalls: tuple[str, ...] = (),
        tail: bytes = b"",
    ) -> Participant:
        participant = self._start_participant(role, regions, slots, allowed_syscalls)
        try:
            reply = participant.request(self.start_request(), self.options.call_timeout, tail)
            participant.is_guarded = reply.get("guarded") is True
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
        page = self._completion_page()
        try:
            process = self.launcher.start(
                role,
                candidate_limits(self.options.memory_gib, self.target),
                file_descriptors(regions, page),
                thread_variables() | compiler_variables(self.target),
                allowed_syscalls=allowed_syscalls,
            )
        except BaseException:  # Ctrl-C too
            if page:
                page.close()
            raise
        return self._participant(process, regions, page, slots=slots)

    def guarded_regions(self, nbytes: int) -> list[Region]:
        """Memory for the inputs of guarded calls and the margins around them."""
        if self.target == "cpu":  # see start_candidate
            self.release_guarded_regions()
        if self._shares_regions:
            self._require_candidate_regions()
            self._guarded_regions = self._candidate_regions[:1]
        elif not self._guarded_regions:
            region = Region(self.target, nbytes)
            self._regions.append(region)
            self._guarded_regions = [region]
        self._guarded_regions[0].clear()
        return list(self._guarded_regions)

    def release_guarded_regions(self) -> None:
        """Free the memory of `guarded_regions`, unless it is the candidate's. No process may still use it."""
        if not self._shares_regions:
            self.release_regions(self._guarded_regions)
        self._guarded_regions = []

    def start_guarded(self, regions: list[Region], slots: list[Slot], library: bytes) -> Participant:
        """A fresh process for calls with guards. `library`: on a CPU, the library that provides them."""
        if spare := self._take_spare("guarded"):
            spare.regions, spare.slots = regions, slots
            return spare
        return self._start_process("guarded", regions, slots, tail=library)

    def load_candidate(
        self, participant: Participant, candidate: Candidate, keep_own_values: bool = False
    ) -> LoadedParameters:
        """Load the candidate (see CandidateLoader.load) and map its inputs. The last one must have ended."""
        if participant.regions is self._candidate_regions:
            self._fill_regions(self._candidate_regions)
        loaded = self.loader.load(participant, candidate, self.options, keep_own_values)
        participant.map_inputs(self.options.call_timeout)
        return loaded

    def close(self) -> None:
        """Free all buffers and unload the task."""
        self._spares.close()
        for region in self._regions:
            region.close()
        if self._ballast:
            self._ballast.close()
        unload(self.task)
