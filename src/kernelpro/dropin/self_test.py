"""The self-test of an exported kernel: is it correct here, does it fall back, how fast is it?"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import torch

from kernelpro.dropin.exported import ExportedKernel
from kernelpro.dropin.spec import KernelSpec, map_tensors, relative_error, signature, tensors_of


def run_self_test(exported: ExportedKernel) -> int:
    """Exit code 0: the kernel is correct; 1: it is not; 77: it cannot run here."""
    if exported.spec.target == "cuda" and not torch.cuda.is_available():
        print("self-test skipped: this kernel is for an NVIDIA GPU, and torch sees none here")
        return 77
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        failures = _failures(exported)
    print("\n".join(f"FAILED: {failure}" for failure in failures) or "self-test passed")
    return 1 if failures else 0


def _failures(exported: ExportedKernel) -> list[str]:
    spec = exported.spec
    torch.manual_seed(0)
    reference = exported.build_reference().to(spec.target)
    failures: list[str] = []
    for t in reference.parameters():  # a bias of zeros would hide that a kernel ignores it
        if t.is_floating_point() and bool((t == t.flatten()[:1]).all()):
            t.add_(0.1 * torch.randn_like(t))
    model = exported.optimized_class().from_module(reference)
    for number in range(len(exported.specs)):
        failures += _test_shape(exported, number, model, reference)
    inputs = exported.inputs(0, spec.target)
    failures += _test_other_batch(exported, model, reference, inputs)
    if not failures:
        ours, theirs = (_median_ms(lambda: _call(m, inputs, spec), spec.target) for m in (model, reference))  # noqa: B023
        times = f"{spec.noun} {ours:.4f} ms, reference {theirs:.4f} ms"
        print(f"medians: {times}, {theirs / ours:.2f}x (eager, warm cache)")
    return failures


def _test_shape(exported: ExportedKernel, number: int, model: Any, reference: Any) -> list[str]:
    """Three calls with new inputs of one shape."""
    spec = exported.specs[number]
    failures: list[str] = []
    inputs = exported.inputs(0, spec.target, number)
    title = f"shape {number + 1}, " if len(exported.specs) > 1 else ""
    for seed in (1, 2, 3):
        fresh = tensors_of(exported.inputs(seed, spec.target, number))
        for old, new in zip(tensors_of(inputs), fresh, strict=True):
            old.copy_(new)  # in place: this exposes a kernel that caches outputs by address
        served = model.stats.kernel
        error = relative_error(_call(model, inputs, spec), _call(reference, inputs, spec))
        if model.stats.kernel == served:
            failures.append(f"{title}the {spec.noun} does not run: {'; '.join(model.stats.reasons)}")
            break
        print(f"{title}seed {seed}: {spec.noun}, relative error {error:.2e} (limit {spec.limit:.1e})")
        if not error <= spec.limit:
            failures.append(f"{title}seed {seed}: relative error {error:.2e} is above {spec.limit:.1e}")
    return failures


def _call(module: Any, inputs: Any, spec: KernelSpec) -> Any:
    count = len(inputs) - len(spec.keyword_only)
    return module(*inputs[:count], **dict(zip(spec.keyword_only, inputs[count:], strict=True)))


def _test_other_batch(exported: ExportedKernel, model: Any, reference: Any, inputs: Any) -> list[str]:
    """Another batch size must be served by the reference, unless it is another judged shape."""
    spec = exported.spec
    other = _other_batch(inputs, reference, spec)
    if other is None:
        print("other batch size: the reference accepts none")
        return []
    served = model.stats.kernel
    error = relative_error(_call(model, other[0], spec), other[1])
    path = "reference" if model.stats.kernel == served else "kernel"
    print(f"other batch size: {path}, relative error {error:.2e}")
    is_judged = any(signature(tuple(other[0])) == each.inputs for each in exported.specs)
    is_wrong = (path == "kernel") != is_judged or not error <= spec.limit
    return [f"other batch size: {path}, relative error {error:.2e}"] if is_wrong else []


def _other_batch(inputs: Any, reference: Any, spec: KernelSpec) -> Any:
    """The inputs with another batch size, and the reference's output; None if it accepts no other."""
    first = next((t for t in tensors_of(inputs) if t.dim()), None)
    rows = first.shape[0] if first is not None else 0
    for alone in (False, True):

        def resized(t: Any, alone: bool = alone) -> Any:
            if not t.dim() or t.shape[0] != rows or (alone and t is not first):
                return t
            return t[: rows // 2].clone() if rows > 1 else torch.cat([t, t])

        other = map_tensors(inputs, resized)
        try:
            return other, _call(reference, other, spec)
        except Exception:  # the reference may reject the batch in any way: try the next
            continue
    return None


def _median_ms(call: Any, target: str) -> float:
    """Median milliseconds of a call: 3 warm-up calls, then up to 50 within two seconds."""
    times: list[float] = []
    while len(times) < 8 or (len(times) < 53 and sum(times) < 2000):
        start = time.perf_counter()
        call()
        if target == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[3:])
