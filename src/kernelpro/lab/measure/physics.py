"""Speed of light: the device's measured ceilings, and the floor of a task that follows from them.

The floor is the time of a perfect kernel: the fewest bytes divided by the bandwidth of a large copy, or the
fewest operations divided by the rate of the allowed unit, whichever is longer. If a CPU's cache keeps the
data between calls, the bandwidth is that of a cached copy. `impossible_ms` is a limit below which no honest
kernel can be. It allows for everything that could make it too high: outputs that stay in cache, data that was
already cached on the CPU, algebra that needs no products.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch

from kernelpro.lab.measure.oracle import tf32
from kernelpro.records import Ceilings, Work, digest, folders

_BANDWIDTH_MARGIN = 1.15
"""A read-only kernel beats a copy by a few percent (4.38 against 4.30 TB/s on an H200)."""
_ALGORITHM_MARGIN = 4.0
"""Winograd F(4x4, 3x3) needs 4 times fewer multiplications than the definition; causal masks halve the
work."""
_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}


def compute_unit(device: str, precision: str, dtype: torch.dtype) -> str:
    """The fastest unit that a task's matrix products may use.

    On the CPU only float64 has a rate of its own. 16-bit types use the rate of float32: products are computed
    in float32 where that is faster, and measuring one takes seconds on a CPU without support for the type.
    """
    if precision != "native":
        return precision if device == "cuda" else "fp32"
    if dtype == torch.float64:
        return "fp64"
    return "fp32" if device == "cpu" else "fp16" if dtype == torch.float16 else "bf16"


def floor_ms(work: Work, ceilings: Ceilings, unit: str) -> float:
    """The time of a perfect kernel."""
    nbytes = work.read_bytes + work.written_bytes
    moved = nbytes / ceilings.bandwidth_for(nbytes)
    done = work.matrix_flops / ceilings.rates[unit]
    return 1e3 * max(moved, done)


def impossible_ms(work: Work, ceilings: Ceilings, device: str) -> float:
    """The time below which a kernel cannot have read its inputs and written its outputs."""
    if device == "cuda":
        moved = work.read_bytes + max(0, work.written_bytes - ceilings.cache_bytes)
        return 1e3 * max(0.0, moved) / (ceilings.bandwidth * _BANDWIDTH_MARGIN)
    moved = work.read_bytes + work.written_bytes
    return 1e3 * moved / (ceilings.cached_bandwidth * 2 * _BANDWIDTH_MARGIN)


def reference_operations_ms(work: Work, ceilings: Ceilings, unit: str) -> float:
    """The time below which a kernel must compute its result with fewer operations than the reference, which
    algebra can allow: the sum of a linear layer's outputs is one dot product. A task with types other than
    float32 may mix types, so that the fastest unit counts."""
    best = max(ceilings.rates[unit], ceilings.rates.get("tf32", 0.0) / 3)
    if unit not in ("fp32", "tf32"):
        best = max(ceilings.rates.values())
    return 1e3 * work.matrix_flops / (best * _ALGORITHM_MARGIN)


_CPU_CACHE_SECONDS = 60.0
"""How long a measurement of a CPU's ceilings is used: load changes within minutes, but a suite of small tasks
should not pay for each task."""


def load_ceilings(device: str, name: str, unit: str) -> Ceilings:
    """The ceilings of this device, with the rate of `unit`; cached on disk.

    A GPU is measured once (about a second). A CPU is shared with other work, and its speed under load is not
    a ceiling: it is measured again (half a second, at most once a minute), and the best value ever measured
    counts.
    """
    measured = ",".join(field.name for field in fields(Ceilings))  # other versions may have others
    key = digest(device, name, torch.__version__, str(torch.get_num_threads()), measured)
    cache = folders.cache(f"ceilings-{key}.json")
    cached = _read_cache(cache)
    fresh = cached is not None and (
        device == "cuda" or time.time() - cache.stat().st_mtime < _CPU_CACHE_SECONDS
    )
    if cached and fresh and unit in cached.rates:
        return cached
    current = cached if cached and fresh else _measure_cuda() if device == "cuda" else _measure_cpu()
    best = current.with_best_of(cached) if cached else current
    if unit not in current.rates:
        rate = max(_rate(device, unit), best.rates.get(unit, 0.0))
        if device == "cpu":  # a vector holds half as many float64: even on a busy machine, half of the rate
            rate = max(rate, best.rates["fp32"] / 2)
        best = replace(best, rates=best.rates | {unit: rate})
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(best)))
        partial.replace(cache)
    except OSError:
        pass  # with a read-only home, the next run measures again (a second)
    return best


def _read_cache(cache: Path) -> Ceilings | None:
    try:
        return Ceilings(**json.loads(cache.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _best_seconds(call: Callable[[], object], repeats: int, synchronize: Callable[[], object]) -> float:
    call()
    best = float("inf")
    for _ in range(repeats):
        synchronize()
        begun = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


def _copy_rate(device: str, nbytes: int, synchronize: Callable[[], object], inner: int) -> float:
    source = torch.ones(nbytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)

    def copies() -> None:
        for _ in range(inner):
            target.copy_(source)

    return 2 * nbytes * inner / _best_seconds(copies, 10, synchronize)


def _matrix_rate(
    device: str, size: int, dtype: torch.dtype, synchronize: Callable[[], object], inner: int
) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def products() -> None:
        for _ in range(inner):
            a @ b

    return 2 * size**3 * inner / _best_seconds(products, 5, synchronize)


def _rate(device: str, unit: str) -> float:
    if device == "cpu":
        return max(_matrix_rate("cpu", size, _DTYPES[unit], _no_synchronization, 1) for size in (512, 1024))
    size = 4096 if unit in ("fp32", "fp64") else 8192
    with tf32(unit == "tf32"):
        return _matrix_rate("cuda", size, _DTYPES[unit], torch.cuda.synchronize, 4)


def _measure_cuda() -> Ceilings:
    sync = torch.cuda.synchronize
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    rates = {unit: _rate("cuda", unit) for unit in ("fp32", "tf32", "bf16")}
    return Ceilings(
        _copy_rate("cuda", 2 << 30, sync, 4), _copy_rate("cuda", cache // 4, sync, 50), cache, rates
    )


def _measure_cpu() -> Ceilings:
    cache = last_level_cache()
    cached = max(_copy_rate("cpu", size, _no_synchronization, 20) for size in (128 << 10, 1 << 20, 4 << 20))
    rates = {"fp32": _rate("cpu", "fp32")}
    bandwidth, loop_share = _large_copy(max(256 << 20, 4 * cache))
    return Ceilings(bandwidth, cached, cache, rates, loop_share)


_ROUNDS = 4


def _large_copy(nbytes: int) -> tuple[float, float]:
    """Bytes per second of a copy that no cache holds, and the bandwidth of the simplest vector loop in it.

    A copy may use instructions that write around the cache, which compilers do not choose for loops.
    """
    source = torch.ones(nbytes // 4, dtype=torch.float32)
    target = torch.empty_like(source)
    copy, loop = _busy_seconds(
        lambda: target.copy_(source), lambda: torch.mul(source, 2.0, out=target), repeats=_ROUNDS
    )
    return 2 * nbytes / copy, min(1.0, copy / loop)


def _busy_seconds(*calls: Callable[[], object], repeats: int) -> list[float]:
    """Best time of calls that divide their work evenly among torch's threads, in turn, by their CPU time.

    Other work on the machine makes them wait for a core, which is no property of the machine.
    """
    best = [float("inf")] * len(calls)
    for index in range(len(calls) * (1 + repeats)):
        side, wall, begun = index % len(calls), time.perf_counter(), time.process_time()
        calls[side]()
        busy = (time.process_time() - begun) / torch.get_num_threads()
        if index >= len(calls):  # the first call touches fresh memory
            best[side] = min(best[side], busy or time.perf_counter() - wall)
    return best


def _no_synchronization() -> None:
    """A CPU call has finished when it returns."""


def last_level_cache() -> int:
    """Bytes of the largest cache that Linux reports; 32 MiB if it reports none."""
    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) << 10)
    return max(sizes[1:], default=sizes[0])
