"""The child: loads one model and calls it when told to. It runs beside untrusted code and is believed nothing.

Everything it says is a claim that the parent checks: outputs are read by the parent as raw bytes, and
its own clock counts only where the parent's agrees. Requests, one at a time:

    start     device, threads, precision       -> ok; nothing of the candidate is there yet
    load      source, seed, initial state      -> how parameters were given, or what went wrong and where
    inputs    shared regions, slots, form      -> whether the device can wait for a gate
    prepare   warm? (baseline: which variant)  -> ok; drops the last output; warm: calls once on stale inputs
    call      which buffer set                 -> where the outputs lie, own milliseconds, those in native calls
    burst     which buffer sets, in order      -> where the outputs of all these calls lie
              both with a gate's number        -> first that all is launched; the device waits for the gate
    loop      how many buffer sets, batch      -> once another request waits: calls made, where the last output of each set lies
    stop      nothing                          -> ok; the request that ends a loop
    profile   (CUDA) which buffer set          -> device time by kernel name
    rehearse  (baseline) variants              -> which of them fail, the code of those that compile
    seed      (baseline) variant               -> its code as a candidate, or why there is none
    build     source (Triton: task, device)    -> what compilers left in the build directories
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import os
import signal
import socket
import sys
import tarfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.archive import extract
from kernelpro.lab.languages import triton_ahead
from kernelpro.lab.languages.native import METER, BuildError
from kernelpro.lab.languages.torch import path_with_own_programs, why_unbuilt
from kernelpro.lab.languages.triton import CACHE
from kernelpro.lab.sandbox import cupti, gpu
from kernelpro.lab.sandbox.memory import Slot, dtype_name, open_region
from kernelpro.lab.sandbox.wire import Channel, Gone
from kernelpro.lab.seeds import MODES, NoSeed, candidate, of_call
from kernelpro.lab.tasks import parameters, paths
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Task


class Failed(Exception):
    """A stage went wrong; carries the stage and one line for people."""

    def __init__(self, stage: str, message: str):
        super().__init__(message)
        self.stage = stage


def run(role: str, control: socket.socket, shared: list[int]) -> None:
    """Serve requests until the parent hangs up."""
    for name in ("SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.environ["PATH"] = path_with_own_programs()
    worker = _of_role(role, shared)
    channel = Channel(control, trusted=True)
    channel.send({"ok": True})
    if role == "probe":
        return
    worker.told, worker.say = channel.waiting, channel.send
    while True:
        try:
            request, tail = channel.receive()
        except Gone:
            return
        try:
            answer, blob = getattr(worker, request["op"])(request, tail)
            channel.send({"ok": True, **answer}, blob)
        except Failed as error:
            channel.send({"ok": False, "stage": error.stage, "error": str(error)})
        except MemoryError:
            channel.send({"ok": False, "stage": request["op"], "error": "out of memory"})
        except BaseException as error:  # whatever a candidate raises, `sys.exit` too
            channel.send({"ok": False, "stage": request["op"], "error": explain(error)})


def _of_role(role: str, shared: list[int]) -> Worker:
    if role == "subject":
        from kernelpro.lab.profile.subject import Subject

        return Subject(shared)
    return Baseline(shared) if role == "baseline" else Worker(shared)


def explain(error: BaseException) -> str:
    """The exception with the last line of the candidate that it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("candidate.py")]
    place = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    text = str(error).strip()
    if isinstance(error, SystemExit):
        return f"called sys.exit({text[:300]}){place}"
    if "0 active drivers" in text:
        text = "Triton needs a GPU: use --target cuda"
    return f"{type(error).__name__}: {(why_unbuilt(text) or text)[:3000]}{place}"


def _failed(stage: str, error: BaseException) -> Failed:
    """An extension that torch cannot build is no crash, wherever the candidate has it built."""
    if why := why_unbuilt(str(error)):
        return Failed("build", why[:3000])
    return Failed(stage, explain(error))


def import_source(source: str) -> ModuleType:
    """Import the candidate as a real file: Triton and tracebacks want one."""
    path = Path("candidate.py").absolute()
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    try:
        spec.loader.exec_module(module)
    except BuildError as error:
        raise Failed("build", str(error)) from None
    except SyntaxError as error:
        raise Failed("build", f"syntax error in line {error.lineno}: {error.msg}") from None
    except BaseException as error:
        raise _failed("import", error) from None
    return module


class Worker:
    """Holds one candidate."""

    def __init__(self, shared: list[int]):
        self._shared = shared
        self._outputs: Any = None
        self._kept = deque[Any]()
        self._model: Any = None
        self._arguments: list[Any] = []
        self._handles: dict[int, str] = {}
        self._must_copy = False
        self._burst_copies = False
        self._gate = 0
        self.told: Callable[[], bool] = lambda: True
        """Whether the next request is there."""
        self.say: Callable[[dict[str, Any]], None] = lambda head: None
        """To the parent, before the answer."""

    def load(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        bundle = torch.load(io.BytesIO(tail), weights_only=False)
        unpack_artifacts(bundle["artifacts"])
        module = import_source(request["source"])
        factory = getattr(module, "ModelNew", None)
        if not callable(factory):
            raise Failed("build", "the candidate defines no class ModelNew")
        init = tree.unpack(bundle["init_form"], bundle["init_leaves"])
        try:
            with torch.no_grad(), parameters.under_seed(request["seed"]):
                model = factory(*init)
            if not callable(model):
                raise TypeError("ModelNew() gave an object that cannot be called")
            given = (
                parameters.give(model, bundle["state"]) if isinstance(model, torch.nn.Module) else "by seed"
            )
            if isinstance(model, torch.nn.Module):
                model = model.to(self._device)
                model.train(request["mode"] == "train")
        except BuildError as error:
            raise Failed("build", str(error)) from None
        except BaseException as error:  # `sys.exit` too
            raise _failed("construct", error) from None
        self._model = model
        return {"parameters": given}, b""

    def start(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        self._device = request["device"]
        self._allow_tf32 = request["tf32"]
        torch.set_num_threads(request["threads"])
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self._allow_tf32
        if self._device == "cuda":
            torch.zeros(1, device="cuda")
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        return {}, b""

    def inputs(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        slots = [Slot.from_json(slot) for slot in request["slots"]]
        self._arguments = []
        for index, region in enumerate(request["regions"]):
            fd = self._shared[index] if self._device == "cpu" else None
            raw = open_region(self._device, region["nbytes"], fd, region["handle"])
            self._arguments.append(tree.unpack(request["form"], [slot.view(raw) for slot in slots]))
            if index == 0:
                self._gate = raw.data_ptr() + request["gate"]
        return {"gated": self._device == "cuda" and self._can_wait()}, b""

    def _can_wait(self) -> bool:
        """Whether the device can wait for a gate: tried with one that is open."""
        try:
            gpu.hold(torch.cuda.current_stream().cuda_stream, self._gate, 0)
        except gpu.GpuError:
            return False
        return True

    def prepare(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        self._kept.append(self._outputs)
        while len(self._kept) > request.get("keep", 0):
            self._kept.popleft()
        self._outputs = None
        if request.get("tidy"):
            gc.collect()
            gc.freeze()
        if request.get("warm"):
            with torch.no_grad():
                self._model(*self._arguments[0])
                if self._device == "cuda":
                    torch.cuda.synchronize()
        return {}, b""

    def call(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        arguments = self._arguments[request["set"]]
        METER.seconds = 0.0
        with torch.no_grad():
            if self._device == "cuda":
                start, end = self._events
                with self._behind_the_gate(request):
                    start.record()
                    self._outputs = self._model(*arguments)
                    if self._must_copy:
                        self._outputs = _copied(self._outputs)
                    end.record()
                torch.cuda.synchronize()
                milliseconds = start.elapsed_time(end)
            else:
                begun = time.perf_counter()
                self._outputs = self._model(*arguments)
                milliseconds = 1e3 * (time.perf_counter() - begun)
        times = {"own_ms": milliseconds, "native_ms": 1e3 * METER.seconds}
        try:
            return {**times, "outputs": self._places(self._outputs)}, b""
        except (
            gpu.GpuError
        ):  # memory that cannot be lent is copied: now, and inside the timed call from the next one on
            self._must_copy = True
            self._outputs = _copied(self._outputs)
            torch.cuda.synchronize()
            return {**times, "outputs": self._places(self._outputs)}, b""

    @contextlib.contextmanager
    def _behind_the_gate(self, request: dict[str, Any]) -> Iterator[None]:
        """What is launched here the device begins when the gate is opened; the parent is told when all is launched."""
        if gate := request.get("gate", 0):
            gpu.hold(torch.cuda.current_stream().cuda_stream, self._gate, gate)
        yield
        if gate:
            self.say({"ok": True, "launched": True})

    def burst(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Calls in a row, one wait at the end. Outputs that share memory are copied from the next burst on (`again`).

        However many calls, the answer names `total` outputs, the last one again and again: so the answer costs the
        same for short and long bursts, and their difference is that of the calls.
        """
        results: list[Any] = []
        self._outputs = results
        with torch.no_grad(), self._behind_the_gate(request):
            begun = time.perf_counter()
            for index in request["sets"]:
                result = self._model(*self._arguments[index])
                results.append(_copied(result) if self._burst_copies else result)
            host = time.perf_counter() - begun
        torch.cuda.synchronize()
        results += results[-1:] * (request["total"] - len(results))
        try:
            places = [self._places(result) for result in results]
            calls = places[: len(request["sets"])]
            held = [(place["handle"], place["offset"]) for call in calls for place in call if place["handle"]]
            distinct = len(set(held)) == len(held)
        except gpu.GpuError:
            if self._burst_copies:
                raise
            distinct = False
        if not distinct and not self._burst_copies:
            self._burst_copies = True
            return {"again": True}, b""
        return {"outputs": places, "host_ms": 1e3 * host / len(request["sets"])}, b""

    def loop(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Calls on the buffer sets in turn until the next request is there. On a GPU at most two batches are under way."""
        count, calls = request["sets"], 0
        results: list[Any] = [None] * count
        self._outputs, marks = results, deque[Any]()
        with torch.no_grad():
            while True:
                for _ in range(request["batch"]):
                    results[calls % count] = self._model(*self._arguments[calls % count])
                    calls += 1
                if self._device == "cuda":
                    marks.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
                    marks[-1].record()
                    if len(marks) > 1:
                        marks.popleft().synchronize()
                if self.told():
                    break
            if self._device == "cuda":
                torch.cuda.synchronize()
        try:
            places = [self._places(result) for result in results[:calls]]
        except gpu.GpuError:
            results = self._outputs = [_copied(result) for result in results[:calls]]
            torch.cuda.synchronize()
            places = [self._places(result) for result in results]
        return {"calls": calls, "outputs": places}, b""

    def stop(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        return {}, b""

    def _places(self, outputs: Any) -> list[dict[str, Any]]:
        leaves: list[torch.Tensor] = []
        tree.pack(outputs, leaves)
        return [self._place(leaf) for leaf in leaves]

    def _place(self, leaf: torch.Tensor) -> dict[str, Any]:
        """Where an output lies, and by which handle its memory can be mapped."""
        where: dict[str, Any] = {
            "shape": leaf.shape,
            "stride": leaf.stride(),
            "dtype": dtype_name(leaf.dtype),
            "handle": "",
        }
        if leaf.device.type != self._device:
            raise Failed("call", f"an output is on {leaf.device}, not on {self._device}")
        if self._device == "cpu" or not leaf.numel():
            return {**where, "offset": leaf.data_ptr()}
        base, allocation = gpu.base_of(leaf.data_ptr())[0], gpu.identity(leaf.data_ptr())
        if allocation not in self._handles:
            self._handles[allocation] = gpu.lend(base).hex()
        return {**where, "offset": leaf.data_ptr() - base, "handle": self._handles[allocation]}

    def profile(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Device time by kernel over one call."""
        arguments = self._arguments[request["set"]]
        try:
            return {"times": self._profile_cupti(arguments)}, b""
        except cupti.Unavailable:
            return {"times": self._profile_torch(arguments)}, b""

    def _profile_cupti(self, arguments: Any) -> dict[str, float]:
        recorder = cupti.Recorder()
        with recorder.running(), torch.no_grad():
            self._model(*arguments)
            torch.cuda.synchronize()
        if not recorder.microseconds:
            raise cupti.Unavailable("CUPTI recorded no kernel")
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

    def build(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Import the source so that its compilers run; give back what they made."""
        torch.set_num_threads(1)
        with contextlib.suppress(
            ImportError, AttributeError
        ):  # a Triton that is built otherwise; the rest is built all the same
            triton_ahead.compile_only(request.get("device"))
        try:
            module = import_source(request["source"])
        except Failed as error:
            if error.stage == "build":
                raise
            return {"note": str(error)}, pack_artifacts()
        if request.get("device"):
            with contextlib.suppress(
                BaseException
            ):  # whatever a candidate raises: it is found out where it is judged
                _call_without_data(module, torch.load(io.BytesIO(tail), weights_only=False)["task"])
        return {}, pack_artifacts()


def _call_without_data(module: ModuleType, task: Task) -> None:
    with torch.device("meta"):  # weights that nobody asks for cost nothing there
        reference = Reference(task, "meta", 0)
    form, leaves = reference.inputs(0)
    with torch.no_grad():
        model = module.ModelNew(*reference.init_inputs)
        if isinstance(model, torch.nn.Module):
            model = model.to("meta").train(task.mode == "train")
        with triton_ahead.WithoutData():
            model(*tree.unpack(form, leaves))


def _copied(value: Any) -> Any:
    leaves: list[torch.Tensor] = []
    form = tree.pack(value, leaves)
    return tree.unpack(form, [leaf.clone() for leaf in leaves])


_KEPT = ("KERNELPRO_BUILD_DIR", "TORCH_EXTENSIONS_DIR", CACHE)


def pack_artifacts() -> bytes:
    """A tar of the build directories, with times (ninja compares them)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in _KEPT:
            if (path := os.environ.get(name)) and os.path.isdir(path):
                archive.add(path, arcname=name)
    return buffer.getvalue()


def unpack_artifacts(data: bytes) -> None:
    if not data:
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            name, _, rest = member.name.partition("/")
            if name in _KEPT and rest:
                member.name = rest
                extract(archive, member, os.environ[name])
    triton_ahead.settle(Path(os.environ[CACHE]))


class Baseline(Worker):
    """Holds the reference in several variants; the same calls, so that both sides pay the same protocol."""

    def load(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        bundle = torch.load(io.BytesIO(tail), weights_only=False)
        paths.use()
        self._reference = Reference(bundle["task"], self._device, request["seed"])
        self._models: dict[str, Any] = {"eager": self._reference.model()}
        return {"parameters": "by name"}, b""

    def rehearse(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        """Call every variant once on inputs of its own, which is where compilers run; say which fail, and what the others wrote."""
        form, leaves = self._reference.inputs(0)
        failed, written = {}, {}
        for variant in request["variants"]:
            try:
                self._choose(variant)
                with torch.no_grad():
                    written[variant] = self._rehearsed(
                        variant, tree.unpack(form, [leaf.clone() for leaf in leaves])
                    )
            except (
                Exception
            ) as error:  # whatever a compiler raises, the variant is left out and the reason told
                failed[variant] = explain(error)
        return {
            "failed": failed,
            "seeds": {variant: source for variant, source in written.items() if source},
        }, b""

    def _rehearsed(self, variant: str, values: list[Any]) -> str:
        if variant in MODES:
            return of_call(self._reference, variant, self._model, values)
        self._model(*values)
        return ""

    def seed(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        self._choose(request["variant"])
        try:
            return {"source": candidate(self._reference, request["variant"]), "reason": ""}, b""
        except NoSeed as reason:
            return {"source": "", "reason": str(reason)}, b""

    def prepare(self, request: dict[str, Any], tail: bytes) -> tuple[dict[str, Any], bytes]:
        self._choose(request["variant"])
        return super().prepare(request, tail)

    def _choose(self, variant: str) -> None:
        compiled = variant in MODES
        tf32 = self._allow_tf32 if compiled else variant == "eager_tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        if compiled and variant not in self._models:
            self._models[variant] = torch.compile(self._reference.model(), mode=MODES[variant])
        self._model = self._models.get(variant, self._models["eager"])
