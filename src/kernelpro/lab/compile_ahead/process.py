"""The process that compiles references ahead (compilers.py): requests on stdin, answers on stdout.

torch.compile runs on fake tensors: it traces the model, generates and compiles code for the device, and is
stopped before the first call. It is also stopped if it is about to benchmark on the device (to decide whether
to pad a matrix product), because another task may be measured there. The judge then compiles that reference
itself, but its kernels are still compiled here to fill the caches (`_fill_caches`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from kernelpro.lab.compile_ahead.compilers import AheadRequest, AheadResult
from kernelpro.lab.sandbox import jail
from kernelpro.records import BadInput, StudyData, Task


class _NeedsDevice(Exception):
    """The compiler is about to run something on the device."""


class _Captured(BaseException):
    """Raised instead of the first call of the compiled code. The compiler does not catch BaseException."""

    def __init__(self, graph: Any, inputs: list[Any]):
        super().__init__()
        self.graph, self.inputs = graph, inputs


def serve() -> None:
    """Answer requests on stdin until it ends, or until the thread that started this process does: a reference
    that never ends must not outlive a worker that was killed."""
    jail.prctl(jail.PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    started = time.monotonic()
    _never_benchmark()
    _name_types_as_on_the_device()
    print(
        f"process {os.getpid()}: imports took {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True
    )
    for line in sys.stdin:
        request = AheadRequest.from_json(json.loads(line))
        faulthandler.dump_traceback_later(60, exit=False)  # shows where a slow compilation is
        try:
            answer = _compile(request)
        except Exception as error:
            traceback.print_exc()
            answer = AheadResult(reason=f"{type(error).__name__}: {str(error)[:300]}")
        faulthandler.cancel_dump_traceback_later()
        output.write(answer.dumps() + "\n")
        output.flush()


def _never_benchmark() -> None:
    """Make the compiler raise _NeedsDevice instead of measuring on the device."""
    from torch._inductor.fx_passes import pad_mm

    from kernelpro.lab.seeds import call_before_benchmarks

    def refuse(*_: Any, **__: Any) -> Any:
        raise _NeedsDevice("the compiler benchmarks on the device")

    if hasattr(pad_mm, "should_pad_bench"):
        pad_mm.should_pad_bench = refuse
    call_before_benchmarks(refuse)


def _name_types_as_on_the_device() -> None:
    """Make traced code name the types of fake values as Tensor and Parameter.

    The text of the traced code is part of a cache key, and a miss costs the judge four seconds.
    """
    import torch
    from torch._dynamo.output_graph import SubgraphTracer
    from torch._subclasses.fake_tensor import FakeTensor

    original = SubgraphTracer.create_graph_input

    def create(self: Any, name: str, type_expr: Any, example_value: Any, *rest: Any, **named: Any) -> Any:
        if type_expr is FakeTensor:
            is_parameter = isinstance(example_value, torch.nn.Parameter)
            type_expr = torch.nn.Parameter if is_parameter else torch.Tensor
        return original(self, name, type_expr, example_value, *rest, **named)

    SubgraphTracer.create_graph_input = create  # type: ignore[method-assign]


def _compile(request: AheadRequest) -> AheadResult:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from kernelpro.lab.exclusive import compiling
    from kernelpro.lab.tasks.reference import load_source, unload

    task, device = request.task, request.target
    if task.form != "kernelbench":
        return AheadResult(reason="only tasks with get_inputs are compiled ahead")
    torch._dynamo.reset()
    if device != "cpu":  # code for the CPU depends on the number of threads
        torch.set_num_threads(1)
    quiet = compiling() if device == "cpu" else contextlib.nullcontext()
    try:
        with quiet, FakeTensorMode(), torch.no_grad():
            started = time.monotonic()
            module = load_source(task)
            with _live_bytes() as memory, torch.device(device):
                model = getattr(module, task.entry)(*module.get_init_inputs())
                model.train(task.mode == "train").requires_grad_(False)
                inputs = list(module.get_inputs())
                result = model(*inputs)
            seconds = {"memory": round(time.monotonic() - started, 3)}
            started = time.monotonic()
            _set_precision(task, model, inputs, device)
            try:
                seed, reason = _seed(task, model, inputs, result, device)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                if not isinstance(error.inner_exception, _NeedsDevice):
                    raise
                seed, reason = "", str(error.inner_exception)
                _fill_caches(task, model, inputs, result, device)
            seconds["compile"] = round(time.monotonic() - started, 3)
            started = time.monotonic()
            study = _study(task, model, inputs, device)
            seconds["study"] = round(time.monotonic() - started, 3)
            return AheadResult(seed, reason, memory.peak, study, seconds)
    finally:
        unload(task)


class _FakeReference:
    """The part of `Reference` that tracing a model needs."""

    def __init__(self, task: Task, model: Any, inputs: list[Any]):
        from kernelpro.lab import tree

        self.task, self._model, self.leaves = task, model, list[Any]()
        self.form = tree.flatten(inputs, self.leaves)

    def inputs(self, seed: int) -> tuple[Any, list[Any]]:
        return self.form, self.leaves

    def model(self) -> Any:
        return self._model

    def state(self) -> dict[str, Any]:
        return dict(self._model.state_dict())

    def run(self, leaves: list[Any]) -> list[Any]:
        from kernelpro.lab import tree

        outputs: list[Any] = []
        tree.flatten(self._model(*tree.unflatten(self.form, leaves)), outputs)
        return outputs


def _study(task: Task, model: Any, inputs: list[Any], device: str) -> StudyData | None:
    """The same operator graphs as those of the judge's study (lab/study.py), traced with fake tensors."""
    import torch

    from kernelpro.lab.tasks import batches
    from kernelpro.lab.tasks.graph import operator_graph

    reference: Any = _FakeReference(task, model, inputs)
    # rejected batch sizes would log errors
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    try:
        graph = operator_graph(reference, 0)
        operators = [node.op for node in graph.nodes if node.op.startswith("aten.")]
        indexes = any(map(batches.INDEXING.search, operators))
        resizing = None if indexes else batches.find_resizing(reference.run, reference.leaves)
        others = (operator_graph(reference, 0, resizing),) if resizing else ()
    except BadInput:
        return None
    is_float32 = _float_types(model, inputs)[:1] in ([], [torch.float32])
    default = "tf32" if device == "cuda" else "fp32"
    capability = ".".join(map(str, torch.cuda.get_device_capability())) if device == "cuda" else ""
    precision = task.precision or (default if is_float32 else "native")
    return StudyData(graph, other_graphs=others, precision=precision, capability=capability)


def _float_types(model: Any, inputs: list[Any]) -> list[Any]:
    import torch

    tensors = [*model.state_dict().values(), *(leaf for leaf in inputs if isinstance(leaf, torch.Tensor))]
    return [tensor.dtype for tensor in tensors if tensor.is_floating_point()]


def _set_precision(task: Task, model: Any, inputs: list[Any], device: str) -> None:
    """Set the same flags as for the judge's baseline: they are part of the keys of the compilers' caches."""
    import torch

    default = (
        "tf32" if device == "cuda" and _float_types(model, inputs)[:1] in ([], [torch.float32]) else "fp32"
    )
    tf32 = (task.precision or default) == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def _seed(task: Task, model: Any, inputs: list[Any], result: Any, device: str) -> tuple[str, str]:
    """torch.compile's code as a candidate, and if there is none, the reason."""
    import torch
    from torch._dynamo.exc import Unsupported
    from torch._inductor.output_code import CompiledFxGraph

    from kernelpro.lab import tree
    from kernelpro.lab.seeds import NoSeed, capture
    from kernelpro.lab.seeds.compose import compose_candidate

    def stop(graph: Any, arguments: Any) -> Any:
        raise _Captured(graph, list(arguments))

    original = CompiledFxGraph.__call__
    CompiledFxGraph.__call__ = stop  # type: ignore[method-assign,assignment]
    capture._tensor_key = _storage_key
    try:
        # fullgraph: the code of only the first of several graphs would not be a candidate
        torch.compile(model, fullgraph=True)(*inputs)  # type: ignore[no-untyped-call]
        return "", "no compiled code was called"
    except Unsupported as error:
        return "", f"the compiler does not trace it as one graph: {str(error).splitlines()[0]}"
    except _Captured as captured:
        outputs: list[Any] = []
        tree.flatten(result if isinstance(result, list | tuple) else [result], outputs)
        strides = getattr(captured.graph, "output_strides", None)
        if strides is not None and len(strides) != len(outputs):
            return "", f"the compiled code has {len(strides)} outputs, but the model has {len(outputs)}"
        call = capture.GraphCall(captured.graph, captured.inputs, outputs)
        reference: Any = SimpleNamespace(task=task)
        try:
            graph = capture.capture_from_calls(reference, model, inputs, result, [call])
            return compose_candidate(graph, task, "compile", device), ""
        except NoSeed as reason:
            return "", str(reason)
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]


def _fill_caches(task: Task, model: Any, inputs: list[Any], result: Any, device: str) -> None:
    """Compile the reference without padding any matrix product.

    The caches store code by what it was compiled from. The judge lets the compiler benchmark: if that pads
    nothing, the judge finds all code in the caches, otherwise most of the kernels. The cache of whole traces
    is off, because its keys do not include what the compiler measures: it would store this guess.
    """
    import torch
    from torch._functorch import config
    from torch._inductor.fx_passes import pad_mm

    if not hasattr(pad_mm, "_should_pad"):
        return
    torch._dynamo.reset()
    padding: Any = pad_mm
    original = padding._should_pad
    padding._should_pad = lambda *_, **__: False
    try:
        # ignore errors: the judge compiles this reference too, and reports them
        with config.patch(enable_autograd_cache=False), contextlib.suppress(Exception):
            _seed(task, model, inputs, result, device)
    finally:
        padding._should_pad = original


def _storage_key(tensor: Any) -> tuple[Any, ...]:
    """Equal for tensors with the same memory; also for fake tensors, which have no address."""
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return (tensor.dtype, *place, tuple(tensor.shape), tuple(tensor.stride()))


@contextlib.contextmanager
def _live_bytes() -> Iterator[Any]:
    """Track the bytes of live tensors; `peak` is their maximum."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.live = self.peak = 0
            self.known: set[int] = set()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            tree_map_only(torch.Tensor, self.add, result)
            return result

        def add(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, int(storage.nbytes())
            if key not in self.known:
                self.known.add(key)
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self.drop, key, size)

        def drop(self, key: int, size: int) -> None:
            self.known.discard(key)
            self.live -= size

    with LiveBytes() as mode:
        yield mode


if __name__ == "__main__":
    serve()
