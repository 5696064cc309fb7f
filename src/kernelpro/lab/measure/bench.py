"""The workbench of a task: reference, oracle, shared memory, the device's ceilings, and the processes under
test.

Judging, profiling and energy measurement share it. The seed, the oracle and the recipe of the inputs stay in
this process.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.exclusive import without_compilers
from kernelpro.lab.measure import device_memory, environment, physics
from kernelpro.lab.measure.cpu_participant import CpuParticipant
from kernelpro.lab.measure.cuda_participant import CudaParticipant
from kernelpro.lab.measure.loading import CandidateLoader, LoadedParameters
from kernelpro.lab.measure.memory_plan import GB, TaskSizes, plan_memory
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
"""What torch.compile imports: four of the five seconds that a compilation from its cache takes."""
_MAX_PLANS = 4
"""A plan whose float64 run takes more memory than it assumed is made again with what that run took."""
_MEASURED_SLACK = 1.1
_FLOAT64_BYTES = 8
_ROOM_FACTOR = 2  # a guarded call takes more than the reference: margins, buffers that are used once


class Bench:
    """Set up once for a task on one device; `close` cleans up at any point."""

    def __init__(
        self,
        task: Task,
        target: Target,
        options: Options,
        launcher: SandboxLauncher,
        builds: Builds,
        plan_failures: int = 0,
    ):
        """`plan_failures`: how often memory has run out although the plan said that it would not."""
        self.task, self.target, self.options = task, target, options
        self._plan_failures = plan_failures
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
                    self.launcher.preload(COMPILER_MODULES)  # meanwhile; on a CPU it would disturb ceilings
                torch.zeros(1, device="cuda")
            self._ballast = device_memory.Ballast(self.target)
            self.seed = secrets.randbits(48)
            self.secret = random.Random(secrets.token_bytes(16))
            self.reference = Reference(self.task, self.target, self.seed)
            self.loader = CandidateLoader(self.reference, self.builds)
            if difference := self.reference.example_mismatch():
                raise BadInput(
                    f"task {self.task.name}: it computes something else in a worker than in your process "
                    f"({difference}): a value that it reads has changed since; make that value an input, "
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

    def find_resizing(self, seed: int) -> batches.Resizing | None:
        """How the inputs of a seed get another batch size that the reference accepts; None if they cannot.

        On a GPU an index out of range ends every later call in this process, so that a reference which may
        index the batch keeps its size.
        """
        names = (operator.name for operator in self.operators)
        if self.target == "cuda" and any(map(batches.INDEXING.search, names)):
            return None
        form, leaves = self.oracle.inputs(seed)
        model = self.reference.model()  # its own: it may keep something of the size of a batch

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
        exact_peak, copies = peak * _FLOAT64_BYTES // size, 4 if self.reference.init_device else 3
        return TaskSizes(self._region_bytes, outputs, parameters, peak, exact_peak, copies)

    def _plan_memory(self, sizes: TaskSizes, seed: int) -> None:
        """Fit everything to the memory that is there, and decide how the oracle computes. Raises BadInput."""
        # what this process holds now is part of the plan
        self.free_own_memory()
        self._call_bytes = sizes.peak
        held = torch.cuda.memory_allocated() if self.target == "cuda" else sizes.parameters
        free = device_memory.free_bytes(self.target, held)
        sliceable, fits = True, False
        for _ in range(_MAX_PLANS):
            self.plan = plan_memory(
                self.task.name,
                sizes,
                free,
                self.target,
                self._flusher.nbytes,
                sliceable,
                self._plan_failures,
            )
            if self.plan.layout.slices > 1 and not self.oracle.can_slice:
                sliceable = self._find_slicing(seed)
                if not sliceable:
                    continue
            needed = self._try_oracle(seed, sizes.exact_peak)
            fits = needed is not None
            assumed = sizes.exact_peak // self.plan.layout.slices
            if needed is not None and needed <= _MEASURED_SLACK * assumed:
                break
            needed = needed or 2 * assumed
            sizes = replace(sizes, exact_peak=needed * self.plan.layout.slices)
        if not fits:
            self.oracle.use_own_type(sizes.exact_peak)
        self.oracle.set_cache_bytes(self.plan.cache_bytes)
        self.turns = Turns(self.plan.layout.takes_turns, self.options.call_timeout)
        self.free_own_memory()

    def _find_slicing(self, seed: int) -> bool:
        try:
            return self.oracle.find_slicing(seed)
        except torch.OutOfMemoryError:  # another process took it
            return False

    def _try_oracle(self, seed: int, exact_bytes: int) -> int | None:
        """Run the oracle once as the plan says; returns the bytes that it took, None where there were too
        few."""
        layout = self.plan.layout
        self.oracle.use_slices(layout.slices)
        if not layout.exact:
            self.oracle.use_own_type(exact_bytes)
            return 0
        with device_memory.measured_peak(self.target) as peak:
            self.oracle.compute_first_slice(seed)
        if isinstance(self.oracle.float64_error, torch.OutOfMemoryError):
            self.oracle.retry_float64()
            return None
        return peak.nbytes if self.oracle.exact else 0

    def free_own_memory(self) -> None:
        """Give memory that the judge does not need at the moment to other processes, and that of children
        which take turns."""
        self.oracle.forget_inputs()
        self.turns.take(None)
        if self.target == "cuda":
            torch.cuda.empty_cache()

    def has_room_for_a_call(self) -> bool:
        """Whether another process can load the candidate and call it, beside all that is there now."""
        return self.target == "cpu" or torch.cuda.mem_get_info()[0] > _ROOM_FACTOR * self._call_bytes + GB

    @property
    def flush_bytes(self) -> int:
        """Bytes that are written to empty the last-level cache."""
        return self._flusher.nbytes

    @property
    def max_burst_calls(self) -> int:
        """So many calls of a burst fit into memory; 0 where bursts do not."""
        return self.plan.burst_calls

    @property
    def candidate_buffer_sets(self) -> int:
        """Buffer sets of a candidate."""
        return self.plan.layout.candidate_sets

    def _region(self) -> Region:
        nbytes = self._guarded_bytes if self._shares_regions else self._region_bytes
        region = Region(self.target, nbytes)
        self._regions.append(region)
        return region

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
        regions = self.reference_regions(buffer_sets)
        try:
            return self.launch_reference(variants, regions)
        except BaseException:  # Ctrl-C too
            if regions is not self._candidate_regions:
                self.release_regions(regions)
            raise

    def launch_reference(self, variants: Collection[str], regions: list[Region]) -> Participant:
        """The same with these buffers. Thread-safe."""
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
        """New buffers with inputs in them; by plan (`count` None) as many as fit, or the candidate's own."""
        if count is None and self._shares_regions:
            self._require_candidate_regions()
            regions = self._candidate_regions
        else:
            regions = self._allocate_regions(self.plan.layout.baseline_sets if count is None else count)
        if regions:
            self._fill_regions(regions)
        if regions and self.target == "cuda":
            regions[0].supports_gate()  # in this thread; another one may launch the process
        if self.plan.layout.takes_turns:
            self.free_own_memory()  # compilers need as much as a call
        return regions

    @property
    def _shares_regions(self) -> bool:
        """Baselines and guarded calls use the candidate's buffers."""
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
        """A fresh sandboxed process with nothing of the candidate in it yet. `allowed_syscalls`: for
        profilers."""
        if self.target == "cpu":
            # a file keeps more than its bytes (times, attributes, a position): the next child gets new ones
            self.release_regions(self._candidate_regions)
            self._candidate_regions = []
        self._require_candidate_regions()
        if self.target == "cuda":
            torch.cuda.empty_cache()  # what the judge does not use is the candidate's
        if role == "candidate" and (spare := self._take_spare(role)):
            spare.regions = self._candidate_regions
            return spare
        return self._start_process(role, self._candidate_regions, None, allowed_syscalls)

    def start_spares(self, roles: Collection[str] = ("candidate", "guarded")) -> None:
        """Start the processes of the next candidate while the task is prepared."""
        if self.target == "cuda" and not self.options.memory_gib:
            for role in roles:
                self._spares.begin(role, partial(self._start_process, role, [], None))

    def await_spares(self) -> None:
        """Wait until they have started: nothing may be timed before."""
        self._spares.wait()

    def _take_spare(self, role: str) -> Participant | None:
        return None if self.options.memory_gib else self._spares.take(role)  # it has no such limit

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
        """Memory for the inputs of guarded calls, with margins around them."""
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
        """Free that memory, unless it is the candidate's; no process uses it any more."""
        if not self._shares_regions:
            self.release_regions(self._guarded_regions)
        self._guarded_regions = []

    def start_guarded(self, regions: list[Region], slots: list[Slot], library: bytes) -> Participant:
        """A fresh process for calls with guards; on a CPU they come from `library`."""
        if spare := self._take_spare("guarded"):
            spare.regions, spare.slots = regions, slots
            return spare
        return self._start_process("guarded", regions, slots, tail=library)

    def load_candidate(
        self, participant: Participant, candidate: Candidate, keep_own_values: bool = False
    ) -> LoadedParameters:
        """Load the candidate (see CandidateLoader.load) and map its inputs. The last candidate has ended."""
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
