"""The self-test of an exported file."""

from __future__ import annotations

from typing import Any

import torch

from kernelpro.engine.exported.guard import (
    _GUARD_LIMIT,
    _GUARD_TARGET,
    OptimizedModule,
    _guard_error,
    _guard_inputs,
    _guard_leaves,
    _guard_map,
)


# --- exported below ------------------------------------------------------------------------------------
def _guard_other_batch(inputs: list[Any], reference: Any) -> Any:
    """The inputs with another batch size, and the reference's output; None if it accepts no other batch
    size."""
    first = next((t for t in _guard_leaves(inputs) if t.dim()), None)
    rows = first.shape[0] if first is not None else 0
    for alone in (False, True):

        def resized(t: Any, alone: bool = alone) -> Any:
            if not t.dim() or t.shape[0] != rows or (alone and t is not first):
                return t
            return t[: rows // 2].clone() if rows > 1 else torch.cat([t, t])

        other = _guard_map(inputs, resized)
        try:
            return other, reference(*other)
        except Exception:  # the reference may reject the batch in any way: try the next
            continue
    return None


def _guard_median_ms(call: Any) -> float:
    """Median milliseconds of a call: 3 warm-up calls, then up to 50 within two seconds."""
    import statistics
    import time

    times: list[float] = []
    while len(times) < 8 or (len(times) < 53 and sum(times) < 2000):
        start = time.perf_counter()
        call()
        if _GUARD_TARGET == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[3:])


@torch.no_grad()
def _guard_self_test() -> int:
    """Exit code 0: the kernel is correct; 1: it is not; 77: it cannot run here."""
    if _GUARD_TARGET == "cuda" and not torch.cuda.is_available():
        print("self-test skipped: this kernel is for an NVIDIA GPU, and torch sees none here")
        return 77
    torch.manual_seed(0)
    model, failures = OptimizedModule().to(_GUARD_TARGET), []
    for t in model.reference.parameters():  # a bias of zeros would hide that a kernel ignores it
        if not model._original and t.is_floating_point() and bool((t == t.flatten()[:1]).all()):
            t.add_(0.1 * torch.randn_like(t))
    inputs = _guard_inputs(0, _GUARD_TARGET)
    print(
        f"limit of the relative error: {_GUARD_LIMIT:.1e}, wider than the judge's: the judge compares with "
        "a float64 reference, this test with the reference in its own precision"
    )
    for seed in (1, 2, 3):
        fresh = _guard_leaves(_guard_inputs(seed, _GUARD_TARGET))
        for old, new in zip(_guard_leaves(inputs), fresh, strict=True):
            old.copy_(new)  # in place: this exposes a kernel that caches outputs by address
        error = _guard_error(model(*inputs), model.reference(*inputs))
        print(f"seed {seed}: {model.last_path}, relative error {error:.2e}")
        if model.last_path != "kernel":
            reason = model.fallback_reason or "these inputs are not those that were judged"
            failures.append(f"the kernel does not run: {reason}")
            break
        elif not error <= _GUARD_LIMIT:
            failures.append(f"seed {seed}: relative error {error:.2e} is above {_GUARD_LIMIT:.1e}")
    other = _guard_other_batch(inputs, model.reference)
    if other is None:
        print("other batch size: the reference accepts none")
    else:
        error = _guard_error(model(*other[0]), other[1])
        print(f"other batch size: {model.last_path}, relative error {error:.2e}")
        if model.last_path != "reference" or not error <= _GUARD_LIMIT:
            failures.append(f"other batch size: {model.last_path}, relative error {error:.2e}")
    if not failures:
        kernel = _guard_median_ms(lambda: model(*inputs))
        reference = _guard_median_ms(lambda: model.reference(*inputs))
        times = f"kernel {kernel:.4f} ms, reference {reference:.4f} ms"
        print(f"medians: {times}, {reference / kernel:.2f}x (eager, warm cache)")
    print("\n".join(f"FAILED: {failure}" for failure in failures) or "self-test passed")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(_guard_self_test())
