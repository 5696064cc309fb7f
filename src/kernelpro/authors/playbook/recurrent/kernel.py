"""The persistent kernel of recurrent layers, in CUDA C++.

Each block computes 16 hidden units of one layer and direction at all steps. Their weights stay in registers,
as operands of tensor cores. A step needs the whole hidden state of the previous step, from all blocks:

1. The launcher's caller fills the output with SENTINEL, a NaN that no computation returns.
2. A block polls the previous hidden state in the output until no element is SENTINEL. So each value is its
   own ready signal: blocks need no flag, fence or barrier between them.
3. Each warp multiplies its part of the state with its part of the weights, and writes its partial sums to
   shared memory. One thread per unit and sequence adds them, computes the cell and stores the new state.

All blocks of a launch must be resident on the device at the same time: otherwise they would wait forever.
"""

from __future__ import annotations

from kernelpro.authors.playbook.cuda.matmul_prelude import INSTRUCTIONS
from kernelpro.authors.playbook.recurrent.network import UNITS, Network

EXCHANGE = """\
// Loads values that other blocks store while this block runs.
__device__ inline uint4 load_published(const float* address) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address) : "memory");
    return v;
}
__device__ inline void publish(float* address, unsigned bits) { *(volatile unsigned*)address = bits; }
__device__ inline void wait_for_others() {}
static int count_processors() {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
}
"""
"""Device code that relies on blocks running concurrently; tests replace it to run the kernel on a CPU."""

_CELLS = {
    "lstm": """\
cell = sigmoid(x[1] + sums[1]) * cell + sigmoid(x[0] + sums[0]) * tanhf(x[2] + sums[2]);
state = sigmoid(x[3] + sums[3]) * tanhf(cell);""",
    "gru": """\
const float reset = sigmoid(x[0] + sums[0]), keep = sigmoid(x[1] + sums[1]);
state = keep * state + (1.0f - keep) * tanhf(x[2] + reset * sums[2]);""",
    "rnn_tanh": "state = tanhf(x[0] + sums[0]);",
    "rnn_relu": "state = fmaxf(x[0] + sums[0], 0.0f);",
}

_SOURCE = """\
#include <cuda_runtime.h>
#include <math.h>
{instructions}
{exchange}
constexpr unsigned SENTINEL = 0xFFFFFFFFu;
constexpr int STEPS = {steps}, BATCH = {batch}, HIDDEN = {hidden}, GATES = {gates}, DIRECTIONS = {directions};
constexpr int UNITS = {units}, BLOCKS = HIDDEN / UNITS, WARPS = 8, THREADS = 32 * WARPS;
constexpr int KEPT = HIDDEN / 32;  // elements of the state that a thread multiplies, for each sequence
constexpr int COLUMNS = (BATCH + 7) / 8;  // tiles of 8 sequences
constexpr bool HAS_CELL = {has_cell}, FOLLOWS = {follows};  // FOLLOWS: layers read the layer below
constexpr bool SEPARATE = FOLLOWS && {is_gru};  // the input of a GRU's last gate is added after its reset
constexpr int TILES = GATES + SEPARATE;
constexpr int PITCH = UNITS + 4;
using Sums = float[TILES][COLUMNS][4];
using Weights = unsigned[GATES][KEPT / 2][4];
constexpr int PARTIAL = WARPS * TILES * COLUMNS * 8 * PITCH;  // sums of all warps for one step

__device__ inline float sigmoid(float x) {{ return 1.0f / (1.0f + expf(-x)); }}
__device__ inline unsigned to_tf32(unsigned bits) {{  // tensor cores ignore the low 13 bits
    return (bits & 0x7F800000u) == 0x7F800000u ? bits : bits + 0x1000u;
}}
// Loads the part of the state that a thread multiplies. WAITS: polls until other blocks have stored it.
template <bool WAITS>
__device__ inline void load_state(unsigned (&state)[COLUMNS][KEPT], const float* first, int pitch) {{
    const int sequence = threadIdx.x % 32 / 4;
    bool is_missing;
    do {{
        is_missing = false;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < KEPT; i += 4) {{
                uint4 v = {{0, 0, 0, 0}};
                if (c * 8 + sequence < BATCH) v = load_published(first + (c * 8 + sequence) * pitch + i);
                if (WAITS)
                    is_missing |= v.x == SENTINEL || v.y == SENTINEL || v.z == SENTINEL || v.w == SENTINEL;
                state[c][i] = v.x, state[c][i + 1] = v.y, state[c][i + 2] = v.z, state[c][i + 3] = v.w;
            }}
        if (WAITS && is_missing) wait_for_others();
    }} while (WAITS && is_missing);
    __syncwarp();
}}
template <bool LAST_APART>
__device__ inline void multiply(Sums& sums, const Weights& weights, const unsigned (&state)[COLUMNS][KEPT]) {{
#pragma unroll
    for (int k = 0; k < KEPT / 2; ++k)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {{
            const unsigned b0 = to_tf32(state[c][2 * k]), b1 = to_tf32(state[c][2 * k + 1]);
#pragma unroll
            for (int g = 0; g < GATES; ++g)
                mma<TF32>(sums[LAST_APART && g == GATES - 1 ? GATES : g][c], weights[g][k], b0, b1);
        }}
}}
__device__ inline void load_weights(Weights& weights, const float* matrix, int unit, int k) {{
    const float* const first = matrix + (long long)(unit + threadIdx.x % 32 / 4) * HIDDEN + k;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
        for (int i = 0; i < KEPT / 2; ++i)
#pragma unroll
            for (int q = 0; q < 4; ++q) {{
                const float* w = first + (g * HIDDEN + q % 2 * 8) * HIDDEN + 2 * i + q / 2;
                weights[g][i][q] = to_tf32(*(const unsigned*)w);
            }}
}}

__global__ void __launch_bounds__(THREADS) recurrent(
    const float* __restrict__ projected, const float* __restrict__ from_state,
    const float* __restrict__ from_below, const float* __restrict__ state_bias,
    const float* __restrict__ below_bias, const float* __restrict__ first_state,
    const float* __restrict__ first_cell, float* output, float* last_state, float* last_cell) {{
    extern __shared__ uint4 shared_memory[];
    float* const partials = (float*)shared_memory;
    const int group = blockIdx.x / BLOCKS, layer = group / DIRECTIONS, direction = group % DIRECTIONS;
    const int unit = blockIdx.x % BLOCKS * UNITS;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int k = warp * (HIDDEN / WARPS) + lane % 4 * KEPT;
    const int pitch = DIRECTIONS * HIDDEN, step_size = BATCH * pitch;
    float* const own = output + (long long)layer * STEPS * step_size + direction * HIDDEN;
    const bool follows = FOLLOWS && layer > 0;
    Weights weights, below_weights;
    load_weights(weights, from_state + (long long)group * GATES * HIDDEN * HIDDEN, unit, k);
    if (FOLLOWS && follows)
        load_weights(below_weights, from_below + (long long)(layer - 1) * GATES * HIDDEN * HIDDEN, unit, k);
    // the cell of one unit and sequence
    const bool has_item = thread < UNITS * BATCH;
    const int item_unit = unit + thread % UNITS, sequence = thread / UNITS;
    const long long item = ((long long)group * BATCH + sequence) * HIDDEN + item_unit;
    float state = 0, cell = 0, biases[GATES], x_biases[GATES];
    if (has_item) {{
        state = first_state[item];
        if (HAS_CELL) cell = first_cell[item];
#pragma unroll
        for (int g = 0; g < GATES; ++g) {{
            biases[g] = state_bias[(group * GATES + g) * HIDDEN + item_unit];
            x_biases[g] = 0.0f;
            if (FOLLOWS && follows) x_biases[g] = below_bias[((layer - 1) * GATES + g) * HIDDEN + item_unit];
        }}
    }}
    for (int s = 0; s < STEPS; ++s) {{
        const int t = direction ? STEPS - 1 - s : s;
        const long long place = (long long)(t * BATCH + sequence) * DIRECTIONS + direction;
        float x[GATES];
        if (has_item) {{
#pragma unroll
            for (int g = 0; g < GATES; ++g)
                x[g] = follows ? x_biases[g] : projected[(place * GATES + g) * HIDDEN + item_unit];
        }}
        Sums sums = {{}};
        unsigned operand[COLUMNS][KEPT];
        if (FOLLOWS && follows) {{
            load_state<true>(operand, own + ((long long)t - STEPS) * step_size + k, pitch);
            multiply<SEPARATE>(sums, below_weights, operand);
        }}
        if (s == 0) load_state<false>(operand, first_state + (long long)group * BATCH * HIDDEN + k, HIDDEN);
        else load_state<true>(operand, own + (long long)(direction ? t + 1 : t - 1) * step_size + k, pitch);
        multiply<false>(sums, weights, operand);
        float* const partial = partials + s % 2 * PARTIAL;
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    partial[(((warp * TILES + m) * COLUMNS + c) * 8 + lane % 4 * 2 + q % 2) * PITCH
                            + lane / 4 + q / 2 * 8] = sums[m][c][q];
        __syncthreads();
        if (has_item) {{
            float sums[GATES];
#pragma unroll
            for (int m = 0; m < TILES; ++m) {{
                float sum = 0;
#pragma unroll
                for (int w = 0; w < WARPS; ++w)
                    sum += partial[((w * TILES + m) * COLUMNS * 8 + sequence) * PITCH + thread % UNITS];
                if (m < GATES) sums[m] = sum + biases[m];
                else x[GATES - 1] += sum;
            }}
            {cell}
            unsigned bits;
            memcpy(&bits, &state, sizeof bits);
            bits = bits == SENTINEL ? 0x7FFFFFFFu : bits;
            publish(own + (long long)t * step_size + sequence * pitch + item_unit, bits);
        }}
    }}
    if (has_item) {{
        last_state[item] = state;
        if (HAS_CELL) last_cell[item] = cell;
    }}
}}

extern "C" int run(const float* projected, const float* from_state, const float* from_below,
                   const float* state_bias, const float* below_bias, const float* first_state,
                   const float* first_cell, float* output, float* last_state, float* last_cell, int groups,
                   cudaStream_t stream) {{
    const int bytes = 2 * PARTIAL * sizeof(float), blocks = groups * BLOCKS;
    static const cudaError_t memory =
        cudaFuncSetAttribute(recurrent, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (memory) return memory;
    if (count_processors() < blocks) return cudaErrorCooperativeLaunchTooLarge;  // blocks would wait forever
    recurrent<<<blocks, THREADS, bytes, stream>>>(projected, from_state, from_below, state_bias, below_bias,
        first_state, first_cell, output, last_state, last_cell);
    return cudaGetLastError();
}}
"""


def kernel_source(network: Network) -> str:
    """CUDA source of the kernel and of its launcher, `run`."""
    return _SOURCE.format(
        instructions=INSTRUCTIONS,
        exchange=EXCHANGE,
        steps=network.steps,
        batch=network.batch,
        hidden=network.hidden,
        gates=network.gates,
        directions=network.directions,
        units=UNITS,
        has_cell="true" if network.cell == "lstm" else "false",
        follows="true" if network.layers_at_once > 1 else "false",
        is_gru="true" if network.cell == "gru" else "false",
        cell=_CELLS[network.cell].replace("\n", "\n            "),
    )
