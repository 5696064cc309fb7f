"""CuTe families: an element-wise map with tiled copies, and a transposition through a swizzled tile."""

from __future__ import annotations

import random

from planted.case import Family, Kernel, exclude, write_task
from planted.gpu_text import candidate, launch

_HEAD = "#include <cute/tensor.hpp>\nusing namespace cute;\n\n"
_PARAMETERS = "self.bias = nn.Parameter(torch.randn(sizes[0]))"
_COPIES = ("needless_copies", "unfused_chain")
_MAPS = (
    (
        "torch.relu(x + self.bias) * 0.75 + x * 0.25",
        "T t = v + b; t = t > T(0) ? t : T(0); return t * T(0.75f) + v * T(0.25f);",
        "t = x + self.bias\nt = torch.relu(t)\nt = t * 0.75\nreturn t + x * 0.25",
    ),
    (
        "((0.125 * x + self.bias) * x + 0.5) * x",
        "return ((T(0.125f) * v + b) * v + T(0.5f)) * v;",
        "t = 0.125 * x\nt = t + self.bias\nt = t * x\nt = t + 0.5\nreturn t * x",
    ),
)


def _map(rng: random.Random, defects: frozenset[str]) -> Kernel:
    """A map over 4 x 1024 tiles, 16 bytes an access; the bias is a tensor with stride zero."""
    cols = 1024 * rng.choice((2, 4, 8))
    rows = rng.randrange(60_000_000, 120_000_000) // cols // 256 * 256
    reference, code, chain = rng.choice(_MAPS)
    blocks = rng.choice((24, 40, 56))
    block, lanes, values, atom = (
        "Shape<_4, _1024>",
        "Layout<Shape<_1, Int<256>>>",
        "Layout<Shape<_1, _4>>",
        "uint128_t",
    )
    if "uncoalesced" in defects:
        block, lanes = "Shape<Int<256>, _16>", "Layout<Shape<Int<256>, _1>>"
        values, atom = "Layout<Shape<_1, _1>>", "float"
    real = "double" if "double_math" in defects else "float"
    loop, grid = "const int tile = blockIdx.x;", "tiles"
    if "few_blocks" in defects:
        loop, grid = "for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)", str(blocks)
    source = (
        f"{_HEAD}using Block = {block};\n"
        f"template <class T> static __device__ __forceinline__ T f(T v, T b) {{\n    {code}\n}}\n\n"
        "__global__ void __launch_bounds__(256) map_kernel(const float* x, const float* bias, float* y, int rows, int cols,\n"
        "                                                  int tiles) {\n"
        "    auto matrix = make_layout(make_shape(rows, cols), make_stride(cols, _1{}));\n"
        "    auto every_row = make_layout(make_shape(rows, cols), make_stride(_0{}, _1{}));\n"
        f"    auto tiled = make_tiled_copy(Copy_Atom<UniversalCopy<{atom}>, float>{{}}, {lanes}{{}}, {values}{{}});\n"
        f"    auto part = tiled.get_slice(threadIdx.x);\n    const int across = cols / size<1>(Block{{}});\n    {loop} {{\n"
        "        auto coord = make_coord(tile / across, tile % across);\n"
        "        Tensor tx = part.partition_S(local_tile(make_tensor(make_gmem_ptr(x), matrix), Block{}, coord));\n"
        "        Tensor tb = part.partition_S(local_tile(make_tensor(make_gmem_ptr(bias), every_row), Block{}, coord));\n"
        "        Tensor ty = part.partition_D(local_tile(make_tensor(make_gmem_ptr(y), matrix), Block{}, coord));\n"
        "        Tensor v = make_fragment_like(tx), b = make_fragment_like(tb);\n        copy(tiled, tx, v);\n        copy(tiled, tb, b);\n"
        "        CUTE_UNROLL\n        for (int i = 0; i < size(v); ++i) v(i) = (float)f<"
        f"{real}>(v(i), b(i));\n        copy(tiled, v, ty);\n    }}\n}}\n\n"
        'extern "C" int run(const float* x, const float* bias, float* y, int rows, int cols, cudaStream_t stream) {\n'
        "    const int tiles = rows / size<0>(Block{}) * (cols / size<1>(Block{}));\n"
        f"{launch('map_kernel', grid, '256', 'x, bias, y, rows, cols, tiles')}    return cudaGetLastError();\n}}\n"
    )
    call = "y = torch.empty_like(x)\nlib.run(x, self.bias, y, *x.shape)\nreturn y"
    if "torch_chain" in defects:
        call = chain
    elif "clone" in defects:
        call = f"x = x.clone()\n{call}"
    task = write_task(f"x: {reference}", f"torch.randn({rows}, {cols})", f"[{cols}]", parameters=_PARAMETERS)
    return Kernel(task, candidate(source, f"x:\n{call}", _PARAMETERS, "cute"))


def _transpose(rng: random.Random, defects: frozenset[str]) -> Kernel:
    """x.t() * factor + z: blocks of 4 x 4 turned in registers, then through a tile without bank conflicts."""
    rows, cols = (64 * rng.randrange(120, 180) for _ in range(2))
    factor = rng.choice((0.5, 1.5, 2.0))
    layout = "Layout<Block, Stride<_64, _1>>"
    if "bank_conflicts" not in defects:
        layout = f"decltype(composition(Swizzle<4, 2, 6>{{}}, {layout}{{}}))"
    body = (
        "    alignas(16) __shared__ float memory[size(Block{})];\n    Tensor tile = make_tensor(make_smem_ptr(memory), TileLayout{});\n"
        "    auto tiled = make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, float>{},\n"
        "                                 Layout<Shape<_16, _16>, Stride<_16, _1>>{}, Layout<Shape<_1, _4>>{});\n"
        "    auto part = tiled.get_slice(threadIdx.x);\n    Tensor tz = part.partition_S(gz);\n"
        "    Tensor add = make_fragment_like(tz), sum = make_fragment_like(tz);\n"
        "    const int i = threadIdx.x / 16, j = threadIdx.x % 16;\n"
        "    Tensor block = make_tensor<float>(Layout<Shape<_4, _4>, Stride<_4, _1>>{});\n"
        "    Tensor turned_block = make_tensor<float>(Layout<Shape<_4, _4>, Stride<_4, _1>>{});\n"
        "    copy(Vector{}, local_tile(gx, Shape<_4, _4>{}, make_coord(i, j)), block);\n    copy(tiled, tz, add);\n"
        "    CUTE_UNROLL\n    for (int r = 0; r < 4; ++r) {\n        CUTE_UNROLL\n"
        "        for (int c = 0; c < 4; ++c) turned_block(c, r) = block(r, c);\n    }\n"
        "    copy(Vector{}, turned_block, local_tile(tile, Shape<_4, _4>{}, make_coord(j, i)));\n    __syncthreads();\n"
        "    copy(tiled, part.partition_S(tile), sum);\n    CUTE_UNROLL\n"
        "    for (int e = 0; e < size(sum); ++e) sum(e) = sum(e) * FACTOR + add(e);\n    copy(tiled, sum, part.partition_D(go));\n"
    )
    if "uncoalesced" in defects:
        body = (
            "    const int lane = threadIdx.x % 64, first = threadIdx.x / 64;\n#pragma unroll 4\n"
            "    for (int k = first; k < 64; k += 4) go(lane, k) = gx(k, lane) * FACTOR + gz(lane, k);\n"
        )
    source = (
        f"{_HEAD}using Block = Shape<_64, _64>;\nusing Vector = AutoVectorizingCopyWithAssumedAlignment<128>;\n"
        f"using TileLayout = {layout};\nconstexpr float FACTOR = {factor}f;\n\n"
        "__global__ void __launch_bounds__(256) turn_kernel(const float* x, const float* z, float* y, int rows, int cols) {\n"
        "    auto straight = make_layout(make_shape(rows, cols), make_stride(cols, _1{}));\n"
        "    auto turned = make_layout(make_shape(cols, rows), make_stride(rows, _1{}));\n"
        "    auto coord = make_coord(int(blockIdx.x), int(blockIdx.y)), mirrored = make_coord(int(blockIdx.y), int(blockIdx.x));\n"
        "    Tensor gx = local_tile(make_tensor(make_gmem_ptr(x), straight), Block{}, mirrored);\n"
        "    Tensor gz = local_tile(make_tensor(make_gmem_ptr(z), turned), Block{}, coord);\n"
        f"    Tensor go = local_tile(make_tensor(make_gmem_ptr(y), turned), Block{{}}, coord);\n{body}}}\n\n"
        'extern "C" int run(const float* x, const float* z, float* y, int rows, int cols, cudaStream_t stream) {\n'
        f"{launch('turn_kernel', 'dim3(cols / 64, rows / 64)', '256', 'x, z, y, rows, cols')}    return cudaGetLastError();\n}}\n"
    )
    call = "y = torch.empty_like(z)\nlib.run(x, z, y, *x.shape)\nreturn y"
    if "clone" in defects:
        call = f"x = x.clone()\n{call}"
    task = write_task(
        f"x, z: x.t() * {factor} + z", f"torch.randn({rows}, {cols}), torch.randn({cols}, {rows})"
    )
    return Kernel(task, candidate(source, f"x, z:\n{call}", language="cute"))


FAMILIES: tuple[Family, ...] = (
    Family(
        "map_cute",
        "cuda",
        "cute",
        _map,
        {
            "uncoalesced": ("uncoalesced_access", "sector_waste"),
            "few_blocks": ("low_parallelism",),
            "double_math": ("double_precision",),
            "torch_chain": ("unfused_chain",),
            "clone": _COPIES,
        },
        exclude(("uncoalesced", "few_blocks", "double_math", "torch_chain"), ("torch_chain", "clone")),
    ),
    Family(
        "transpose_cute",
        "cuda",
        "cute",
        _transpose,
        {
            "bank_conflicts": ("bank_conflicts",),
            "uncoalesced": ("uncoalesced_access", "sector_waste"),
            "clone": _COPIES,
        },
        exclude(("bank_conflicts", "uncoalesced")),
    ),
)
