"""The child that holds one model and calls it on request.

It shares its process with untrusted code, so the parent treats every reply as a claim and checks it: the
parent reads outputs as raw bytes, and the child's clock counts only if the parent's clock agrees. Requests,
one at a time:

    start          device, threads, precision    -> ok; nothing of the candidate is loaded yet
    load           source, seed, state's entries -> where parameters come from, and the names of those whose
                                                    values differ from the reference's; or which stage failed
    copy_state     places of values in a region  -> ok; before `set_state`, on a GPU
    set_state      values of these parameters    -> ok; follows every `load`, even without values
    add_variant    source, artifacts             -> the number of the variant; the candidate itself is 0
    keep_model     nothing                       -> ok; the candidate becomes the only variant, number 1, and
                                                    the next candidate is loaded beside it
    race           variants, number of calls     -> milliseconds of each call, one list per variant
    map_inputs     shared regions, slots, form   -> whether the device can wait for a gate
    prepare        see the method                -> ok; drops the last output
    release_memory nothing                       -> ok; drops all outputs and frees unused memory
    call           buffer sets, in order         -> where the outputs of these calls lie; own milliseconds per
                                                    call, and the part of them in native code
                   with a gate's value           -> first, when everything is launched, where the outputs will
                                                    lie; the device waits for the gate
    loop           number of sets, batch         -> once the next request has arrived: the number of calls,
                                                    and where the last output of each set lies
    stop_loop      nothing                       -> ok; the request that ends a loop
    kernel_times   (CUDA) buffer set             -> device time by kernel name
"""

from __future__ import annotations

import contextlib
import gc
import io
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.languages.native import NATIVE_CALLS
from kernelpro.lab.sandbox import cupti, gpu
from kernelpro.lab.sandbox.artifacts import unpack_artifacts
from kernelpro.lab.sandbox.child import Reply, Request, RequestServer
from kernelpro.lab.sandbox.child_devices import ChildDevice, CpuDevice, CudaDevice, clone_outputs
from kernelpro.lab.sandbox.extensions import reuse_by_content, uses_extensions
from kernelpro.lab.sandbox.memory import Slot
from kernelpro.lab.sandbox.outputs import describe_structure
from kernelpro.lab.sandbox.stages import StageFailed, as_stage_failure, import_candidate
from kernelpro.lab.tasks import parameters


class CandidateServer(RequestServer):
    """Holds one candidate."""

    def __init__(self, shared_fds: list[int]):
        super().__init__(shared_fds)
        self._shared_fds = shared_fds
        self._device: ChildDevice = CpuDevice(shared_fds)
        self._outputs: list[Any] = []
        """The outputs of the last request."""
        self._retained_outputs = deque[Any]()
        self._model: Any = None
        self._mode = "eval"
        self._arguments: list[Any] = []
        """The model's arguments, one list per buffer set."""
        self._copy_outputs = False
        """Every timed call copies its outputs, because their memory cannot be exported."""
        self._gate_address = 0
        self._construct_variant: Callable[[Any], Any] = lambda factory: factory()
        self._variants: list[Any] = []
        """The candidate with other values of its tunables, numbered from 1, which race against it. In a race
        of designs, the fastest design so far."""
        self._loads = 0
        self._flush_buffer: torch.Tensor | None = None

    def start(self, request: Request, tail: bytes) -> Reply:
        """Choose the device, the number of threads and the precision."""
        self._allow_tf32 = request["tf32"]
        torch.set_num_threads(request["threads"])
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._allow_tf32
        if request["device"] == "cuda":
            self._device = CudaDevice(self._shared_fds)
        return {}, b""

    def load(self, request: Request, tail: bytes) -> Reply:
        """Import the candidate and construct ModelNew."""
        bundle = torch.load(io.BytesIO(tail), weights_only=False)
        self._model, self._outputs = None, []
        self._loads += 1
        name = "candidate" if self._loads == 1 else f"design{self._loads}_candidate"
        factory = _import_factory(request["source"], bundle["artifacts"], name)
        self.before_construction()
        init = tree.unflatten(bundle["init_form"], bundle["init_leaves"])
        construct = partial(
            _construct,
            init=init,
            seed=request["seed"],
            device=request["init_device"],
            constants=bundle["constants"],
        )
        try:
            model = construct(factory)
            if not callable(model):
                raise TypeError("ModelNew() returned an object that cannot be called")
            source, different = "by seed", list[str]()
            if isinstance(model, torch.nn.Module):
                source, different = parameters.match_state(model, bundle["entries"])
        except BaseException as error:  # `sys.exit` too
            raise as_stage_failure("construct", error) from None
        self._model, self._mode = model, request["mode"]
        self._construct_variant = construct
        return {"parameters": source, "different": different}, b""

    def before_construction(self) -> None:
        """Called when the candidate has been imported, but not constructed."""

    def set_state(self, request: Request, tail: bytes) -> Reply:
        """Copy the reference's values into parameters, then move the model to the device."""
        try:
            if isinstance(self._model, torch.nn.Module):
                if tail:
                    parameters.copy_state(self._model, torch.load(io.BytesIO(tail)))
                self._model = self._model.to(self._device.name)
                self._model.train(self._mode == "train")
        except BaseException as error:  # `sys.exit` too
            raise as_stage_failure("construct", error) from None
        return {}, b""

    def copy_state(self, request: Request, tail: bytes) -> Reply:
        """Copy pieces of the reference's values from a region of the parent into parameters, on a GPU."""
        region = request["region"]
        raw = self._device.map_region(0, region["nbytes"], region["handle"])
        try:
            for piece in request["pieces"]:
                values = Slot.from_json(piece["slot"]).view(raw)
                parameters.copy_elements(self._model, piece["name"], piece["first"], values)
            self._device.synchronize()
        except BaseException as error:  # `sys.exit` too
            raise as_stage_failure("construct", error) from None
        finally:
            gpu.close_ipc_handle(raw.data_ptr())
        return {}, b""

    def add_variant(self, request: Request, tail: bytes) -> Reply:
        """Load the candidate with other values of its tunables beside it. Both share their parameters."""
        number = len(self._variants) + 1
        factory = _import_factory(request["source"], tail, f"variant{number}")
        try:
            variant = self._construct_variant(factory)
            if isinstance(variant, torch.nn.Module):
                _share_parameters(variant, self._model)
                variant = variant.to(self._device.name).train(self._mode == "train")
        except BaseException as error:  # `sys.exit` too
            raise as_stage_failure("construct", error) from None
        self._variants.append(variant)
        return {"variant": number}, b""

    def keep_model(self, request: Request, tail: bytes) -> Reply:
        """Keep the model as the only variant, against which the next designs race."""
        self._variants = [self._model]
        return {}, b""

    def race(self, request: Request, tail: bytes) -> Reply:
        """Call variants in turn, each time with a cold cache."""
        if self._flush_buffer is None:
            self._flush_buffer = torch.empty(request["flush"], dtype=torch.uint8, device=self._device.name)
        numbers = request["variants"]
        times: dict[int, list[float]] = {number: [] for number in numbers}
        self._outputs = []
        with torch.no_grad():
            for call in range(request["calls"]):
                arguments = self._arguments[call % len(self._arguments)]
                for number in numbers:
                    model = self._variants[number - 1] if number else self._model
                    self._flush_buffer.zero_()
                    self._device.synchronize()
                    times[number].append(
                        self._device.time_calls(partial(_call_without_result, model, arguments))
                    )
        return {"ms": [times[number] for number in numbers]}, b""

    def map_inputs(self, request: Request, tail: bytes) -> Reply:
        """Map the parent's input regions."""
        slots = [Slot.from_json(slot) for slot in request["slots"]]
        self._arguments = []
        for index, region in enumerate(request["regions"]):
            raw = self._device.map_region(index, region["nbytes"], region["handle"])
            self._arguments.append(tree.unflatten(request["form"], [slot.view(raw) for slot in slots]))
            if index == 0:
                self._gate_address = raw.data_ptr() + request["gate"]
        return {"gated": self._device.supports_gate(self._gate_address)}, b""

    def prepare(self, request: Request, tail: bytes) -> Reply:
        """Drop all but the last `retain` outputs. `collect`: collect garbage. `warm`: call the model once."""
        self._retained_outputs.extend(self._outputs)
        while len(self._retained_outputs) > request.get("retain", 0):
            self._retained_outputs.popleft()
        self._outputs = []
        if request.get("collect"):
            gc.collect()
            gc.freeze()
        if request.get("warm"):
            with torch.no_grad():
                self._model(*self._arguments[request.get("set", 0)])
                self._device.synchronize()
        return {}, b""

    def release_memory(self, request: Request, tail: bytes) -> Reply:
        """Drop all outputs and free unused memory."""
        self._outputs = []
        self._retained_outputs.clear()
        self._device.release_memory()
        return {}, b""

    def call(self, request: Request, tail: bytes) -> Reply:
        """Timed calls on buffer sets, one after the other."""
        results: list[Any] = []
        self._outputs, sets = results, request["sets"]
        NATIVE_CALLS.seconds = 0.0

        def run() -> None:
            for index in sets:
                outputs = self._model(*self._arguments[index])
                results.append(clone_outputs(outputs) if self._copy_outputs else outputs)

        def run_behind_gate() -> list[torch.Tensor]:
            run()
            return _flatten(results)

        with torch.no_grad():
            if request.get("gate"):
                wait = self._device.launch_behind_gate(self._gate_address, request["gate"], run_behind_gate)
                self.send_early({"ok": True, "launched": True, **self._describe(results)})
                own_ms, description = wait(), {}
            else:
                own_ms = self._device.time_calls(run)
                description = self._describe_or_copy(results)
        times = {"own_ms": own_ms / len(sets), "native_ms": 1e3 * NATIVE_CALLS.seconds / len(sets)}
        return {**times, **description}, b""

    def _describe(self, results: list[Any]) -> dict[str, Any]:
        return {
            "outputs": [self._locate_all(outputs) for outputs in results],
            "structure": describe_structure(results[-1]),
        }

    def _describe_or_copy(self, results: list[Any]) -> dict[str, Any]:
        """Describe the outputs. If their memory cannot be exported, copy them: now, and if other settings of
        torch's allocator do not help, from the next call on within the timed call."""
        try:
            return self._describe(results)
        except gpu.GpuError:
            self._copy_outputs = not self._device.make_exportable()
            results[:] = [clone_outputs(outputs) for outputs in results]
            self._device.synchronize()
            return self._describe(results)

    def loop(self, request: Request, tail: bytes) -> Reply:
        """Call the model on the buffer sets in turn until the next request arrives. On a GPU, at most two
        batches are queued."""
        count, calls = request["sets"], 0
        results: list[Any] = [None] * count
        self._outputs, marks = results, deque[Any]()
        with torch.no_grad():
            while True:
                for _ in range(request["batch"]):
                    results[calls % count] = self._model(*self._arguments[calls % count])
                    calls += 1
                self._device.pace(marks)
                if self.has_next_request():
                    break
            self._device.synchronize()
        try:
            claims = [self._locate_all(result) for result in results[:calls]]
        except gpu.GpuError:
            results = self._outputs = [clone_outputs(result) for result in results[:calls]]
            self._device.synchronize()
            claims = [self._locate_all(result) for result in results]
        return {"calls": calls, "outputs": claims}, b""

    def stop_loop(self, request: Request, tail: bytes) -> Reply:
        """Arrives while a loop runs, and ends it."""
        return {}, b""

    def _locate_all(self, outputs: Any) -> list[dict[str, Any]]:
        leaves = _flatten(outputs)
        for index, leaf in enumerate(leaves):
            if leaf.device.type != self._device.name:
                where = f"is on {leaf.device}, should be on {self._device.name}"
                raise StageFailed("outputs", f"output {index} {where}")
            if leaf.layout is not torch.strided:
                layout = str(leaf.layout).removeprefix("torch.")
                raise StageFailed("outputs", f"output {index} has layout {layout}, should be dense")
        return [self._device.locate(leaf) for leaf in leaves]

    def kernel_times(self, request: Request, tail: bytes) -> Reply:
        """Device time of one call by kernel, in microseconds."""
        arguments = self._arguments[request["set"]]
        try:
            return {"times": self._profile_cupti(arguments)}, b""
        except cupti.CuptiUnavailable:
            return {"times": self._profile_torch(arguments)}, b""

    def _profile_cupti(self, arguments: Any) -> dict[str, float]:
        recorder = cupti.KernelTimeRecorder()
        with recorder.recording(), torch.no_grad():
            self._model(*arguments)
            torch.cuda.synchronize()
        if not recorder.microseconds:
            raise cupti.CuptiUnavailable("CUPTI recorded no kernel")
        return recorder.microseconds

    def _profile_torch(self, arguments: Any) -> dict[str, float]:
        from torch._C._autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded, torch.no_grad():
            self._model(*arguments)
            torch.cuda.synchronize()
        times: dict[str, float] = {}
        for event in recorded.events():
            if event.device_type == DeviceType.CUDA:
                times[event.name] = times.get(event.name, 0.0) + event.device_time_total
        return times


def _construct(
    factory: Any, init: list[Any], seed: int, device: str, constants: Collection[parameters.Constant]
) -> Any:
    """Construct the model on `device`, like the reference; on the CPU if that fails."""
    if device:
        with contextlib.suppress(Exception):
            return parameters.construct(factory, init, seed, device, constants)[0]
    return parameters.construct(factory, init, seed, only=constants)[0]


def _import_factory(source: str, artifacts: bytes, name: str) -> Any:
    """Import a candidate with the artifacts of its build, and return its ModelNew."""
    unpack_artifacts(artifacts)
    if uses_extensions(source):
        reuse_by_content()
    factory = getattr(import_candidate(source, name), "ModelNew", None)
    if not callable(factory):
        raise StageFailed("build", "the candidate defines no class ModelNew")
    return factory


def _call_without_result(model: Any, arguments: list[Any]) -> None:
    model(*arguments)


def _share_parameters(model: torch.nn.Module, owner: torch.nn.Module) -> None:
    """Let a model use the tensors of `owner` with the same names, so that they are in memory only once."""
    modules = dict(owner.named_modules())
    for name, part in model.named_modules():
        source = modules.get(name)
        for kind in ("_parameters", "_buffers"):
            own, others = getattr(part, kind), getattr(source, kind, {})
            for key, tensor in own.items():
                other = others.get(key)
                if tensor is not None and other is not None and other.shape == tensor.shape:
                    own[key] = other


def _flatten(outputs: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    tree.flatten(outputs, leaves)
    return leaves
