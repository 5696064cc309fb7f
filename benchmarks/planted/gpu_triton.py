"""Triton families: element-wise, rows, products."""

from __future__ import annotations

import random

from planted.case import Family, Kernel, exclude, write_task
from planted.gpu_text import write

_IMPORTS = "import triton\nimport triton.language as tl"
_PARAMETERS = "self.weight = nn.Parameter(torch.randn(sizes[0]))"


def _map(rng: random.Random, defects: frozenset[str]) -> Kernel:
    cols = 256 * rng.choice((8, 12, 16, 24, 32))
    rows = rng.randrange(60_000_000, 120_000_000) // cols // 64 * 64
    block, programs = rng.choice((1024, 2048)), rng.choice((16, 32, 48))
    kind = rng.randrange(2)
    expression = ("tl.maximum(x + w, 0.0) * 0.75 + x * 0.25", "(0.125 * x + w) * x + 0.5")[kind]
    reference = ("torch.relu(x + self.weight) * 0.75 + x * 0.25", "(0.125 * x + self.weight) * x + 0.5")[kind]
    warps = 4
    offsets = "pid * BLOCK + tl.arange(0, BLOCK)"
    grid = "(triton.cdiv(x.numel(), BLOCK),)"
    widen = ".to(tl.float64)" if "double_math" in defects else ""
    if "tiny_blocks" in defects:
        block, warps = 64, 1
    if "uncoalesced" in defects:
        offsets = "pid * BLOCK + (tl.arange(0, BLOCK) % 32) * (BLOCK // 32) + tl.arange(0, BLOCK) // 32"
    step = (
        f"    i = ({offsets}).to(tl.int64)\n    inside = i < n\n    x = tl.load(x_ptr + i, mask=inside){widen}\n"
        f"    w = tl.load(w_ptr + i % COLS, mask=inside){widen}\n    tl.store(y_ptr + i, ({expression}).to(tl.float32), mask=inside)\n"
    )
    if "few_blocks" in defects:
        grid = f"({programs},)"
        body = "    for pid in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):\n" + "".join(
            f"    {line}\n" for line in step.splitlines()
        )
    else:
        body = f"    pid = tl.program_id(0).to(tl.int64)\n{step}"
    code = f"@triton.jit\ndef map_kernel(x_ptr, w_ptr, y_ptr, n, cols, COLS: tl.constexpr, BLOCK: tl.constexpr):\n{body}"
    call = (
        f"y = torch.empty_like(x)\nBLOCK = {block}\n"
        f"map_kernel[{grid}](x, self.weight, y, x.numel(), x.shape[1], COLS={cols}, BLOCK=BLOCK, num_warps={warps})\nreturn y"
    )
    if "clone" in defects:
        call = f"x = x.clone()\n{call}"
    if "host_sync" in defects:
        call = (
            f"for i in range(8):\n    if float(x[i, 0]) != float(x[i, 0]):\n        raise ValueError\n{call}"
        )
    task = write_task(f"x: {reference}", f"torch.randn({rows}, {cols})", f"[{cols}]", parameters=_PARAMETERS)
    return Kernel(task, write(code, _IMPORTS, f"x:\n{call}", _PARAMETERS))


def _rows(rng: random.Random, defects: frozenset[str]) -> Kernel:
    dim = rng.choice((1024, 2048, 4096))
    rows = rng.randrange(60_000_000, 120_000_000) // dim
    programs = rng.choice((16, 32, 48))
    warps = max(2, dim // 512)
    kind = rng.choice(("softmax", "rms"))
    if kind == "softmax":
        reference = "torch.softmax(x * 1.5, -1)"
        first = "e = tl.exp(x * 1.5 - tl.max(x * 1.5, axis=0))"
        value = "e / tl.sum(e, axis=0)"
    else:
        reference = "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)"
        first = "e = x"
        value = "e * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / DIM + 1e-5))"
    widen = ".to(tl.float64)" if "double_math" in defects else ""
    step = (
        f"    x = tl.load(x_ptr + row * DIM + tl.arange(0, DIM)){widen}\n    {first}\n"
        f"    tl.store(y_ptr + row * DIM + tl.arange(0, DIM), ({value}).to(tl.float32))\n"
    )
    if "few_blocks" in defects:
        grid = f"({programs},)"
        body = "    for row in range(tl.program_id(0), rows, tl.num_programs(0)):\n" + "".join(
            f"    {line}\n" for line in step.splitlines()
        )
    else:
        grid = "(len(x),)"
        body = f"    row = tl.program_id(0).to(tl.int64)\n{step}"
    code = f"@triton.jit\ndef row_kernel(x_ptr, y_ptr, rows, DIM: tl.constexpr):\n{body}"
    call = (
        f"y = torch.empty_like(x)\nrow_kernel[{grid}](x, y, len(x), DIM={dim}, num_warps={warps})\nreturn y"
    )
    if "torch_chain" in defects:
        call = {
            "softmax": "t = x * 1.5\nt = t - t.amax(-1, keepdim=True)\nt = torch.exp(t)\nreturn t / t.sum(-1, keepdim=True)",
            "rms": "t = x * x\nt = t.mean(-1, keepdim=True)\nt = torch.rsqrt(t + 1e-5)\nreturn x * t",
        }[kind]
    elif "clone" in defects:
        call = f"x = x.clone()\n{call}"
    elif "many_launches" in defects:
        call = (
            "y = torch.empty_like(x)\nfor a, b in zip(x.chunk(96), y.chunk(96)):\n"
            f"    row_kernel[(len(a),)](a, b, len(a), DIM={dim}, num_warps={warps})\nreturn y"
        )
    task = write_task(f"x: {reference}", f"torch.randn({rows}, {dim})")
    return Kernel(task, write(code, _IMPORTS, f"x:\n{call}", ""))


def _product(rng: random.Random, defects: frozenset[str]) -> Kernel:
    size = 256 * rng.choice((16, 20, 24))
    tile = (32, 32, 32) if "small_tiles" in defects else (128, 128, 64)
    warps = 4 if "small_tiles" in defects else 8
    stages = 1 if "one_stage" in defects else 3
    code = f"""@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr):
    pid, columns = tl.program_id(0), SIZE // N
    group = pid // (8 * columns)
    row = group * 8 + pid % 8
    column = pid % (8 * columns) // 8
    i, j, k = row * M + tl.arange(0, M), column * N + tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for d in tl.range(0, SIZE, K, num_stages=STAGES):
        a = tl.load(a_ptr + i[:, None] * SIZE + (d + k)[None, :])
        b = tl.load(b_ptr + (d + k)[:, None] * SIZE + j[None, :])
        total = {"tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision='ieee')" if "no_tensor_cores" in defects else "tl.dot(a, b, total)"}
    tl.store(c_ptr + i[:, None] * SIZE + j[None, :], total.to(tl.bfloat16))
"""
    m, n, k = (64, 64, 32) if "no_tensor_cores" in defects else tile
    call = (
        f"c = torch.empty_like(a)\nproduct_kernel[({size // m * (size // n)},)](a, b, c, SIZE={size}, M={m}, N={n}, K={k}, "
        f"STAGES={stages}, num_warps={warps}, num_stages={stages})\nreturn c"
    )
    task = write_task(
        "a, b: a @ b",
        f"torch.randn({size}, {size}, dtype=torch.bfloat16), torch.randn({size}, {size}, dtype=torch.bfloat16)",
    )
    return Kernel(task, write(code, _IMPORTS, f"a, b:\n{call}", ""))


_COPIES = ("needless_copies", "unfused_chain")

FAMILIES: tuple[Family, ...] = (
    Family(
        "map_triton",
        "cuda",
        "triton",
        _map,
        {
            "tiny_blocks": ("tiny_blocks",),
            "uncoalesced": ("uncoalesced_access", "sector_waste"),
            "few_blocks": ("low_parallelism",),
            "double_math": ("double_precision",),
            "clone": _COPIES,
            "host_sync": ("host_sync",),
        },
        exclude(("tiny_blocks", "uncoalesced", "few_blocks", "double_math"), ("clone", "host_sync")),
    ),
    Family(
        "rows_triton",
        "cuda",
        "triton",
        _rows,
        {
            "few_blocks": ("low_parallelism",),
            "double_math": ("double_precision",),
            "torch_chain": ("unfused_chain",),
            "clone": _COPIES,
            "many_launches": ("launch_overhead", "host_gaps"),
        },
        exclude(
            ("few_blocks", "double_math", "torch_chain", "many_launches"),
            ("clone", "torch_chain", "many_launches"),
        ),
    ),
    Family(
        "product_triton",
        "cuda",
        "triton",
        _product,
        {
            "no_tensor_cores": ("tensor_cores_idle",),
            "one_stage": ("missing_pipelining", "missing_async_copy"),
            "small_tiles": ("missing_reuse", "slow_mma_family"),
        },
        exclude(("no_tensor_cores", "one_stage", "small_tiles")),
    ),
)
