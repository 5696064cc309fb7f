"""CUDA source of the device functions that kernels share. A candidate contains those that it calls."""

from __future__ import annotations

PRELUDE = """\
// NaN propagates, as in torch; fmaxf and fminf would drop it.
template <class T> __device__ inline T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ inline T minimum(T a, T b) { return a < b || a != a ? a : b; }
#ifdef __CUDA_ARCH__  // one instruction
template <> __device__ inline float maximum(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
template <> __device__ inline float minimum(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}
#endif
template <class T> struct Limits {  // of integers
    static __device__ T lowest() { return T(-1) > T(0) ? T(0) : T(T(1) << (8 * sizeof(T) - 1)); }
    static __device__ T highest() { return T(~lowest()); }
};
template <> struct Limits<float> {
    static __device__ float lowest() { return -INFINITY; }
    static __device__ float highest() { return INFINITY; }
};
template <> struct Limits<double> {
    static __device__ double lowest() { return -HUGE_VAL; }
    static __device__ double highest() { return HUGE_VAL; }
};
struct Sum {
    template <class T> static __device__ T identity() { return T(0); }
    template <class T> static __device__ T combine(T a, T b) { return a + b; }
};
struct Prod {
    template <class T> static __device__ T identity() { return T(1); }
    template <class T> static __device__ T combine(T a, T b) { return a * b; }
};
struct Max {
    template <class T> static __device__ T identity() { return Limits<T>::lowest(); }
    template <class T> static __device__ T combine(T a, T b) { return maximum(a, b); }
};
struct Min {
    template <class T> static __device__ T identity() { return Limits<T>::highest(); }
    template <class T> static __device__ T combine(T a, T b) { return minimum(a, b); }
};

// Vectorized access to N consecutive elements, up to 16 bytes per instruction.
// The address must be aligned to the size of an access.
template <int BYTES> struct Word;
template <> struct Word<1> { using type = unsigned char; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };
template <class C, int N, class T> __device__ inline void load_vector(C (&values)[N], const T* address) {
    constexpr int PER_ACCESS = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<PER_ACCESS * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += PER_ACCESS) {
        const W word = __ldg((const W*)(address + i));
        T elements[PER_ACCESS];
        memcpy(elements, &word, sizeof word);
#pragma unroll
        for (int j = 0; j < PER_ACCESS; ++j) values[i + j] = C(elements[j]);
    }
}
template <class T, class C, int N> __device__ inline void store_vector(T* address, const C (&values)[N]) {
    constexpr int PER_ACCESS = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<PER_ACCESS * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += PER_ACCESS) {
        T elements[PER_ACCESS];
#pragma unroll
        for (int j = 0; j < PER_ACCESS; ++j) elements[j] = T(values[i + j]);
        W word;
        memcpy(&word, elements, sizeof word);
        __stwb((W*)(address + i), word);
    }
}
"""

FAST_FUNCTIONS = {
    "tanh": """\
__device__ inline float fast_tanh(float x) {
    const float a = fabsf(x), z = x * x, t = __expf(-2.0f * a);
    float p = -5.70498872745e-3f * z + 2.06390887954e-2f;
    p = ((p * z - 5.37397155531e-2f) * z + 1.33314422036e-1f) * z - 3.33332819422e-1f;
    return a < 0.625f ? p * z * x + x : copysignf(__fdividef(1.0f - t, 1.0f + t), x);
}
""",
}
"""Accurate to a few ulp."""

APPROXIMATE_FUNCTIONS = {
    "log1p": """\
__device__ inline float approx_log1p(float x) { return __logf(1.0f + x); }
""",
    "tanh": """\
__device__ inline float approx_tanh(float x) {  // 1 - 2 / (e^2x + 1); absolute error 1e-7
    return 1.0f - __fdividef(2.0f, exp2f(2.88539008f * x) + 1.0f);
}
""",
    "erf": """\
__device__ inline float approx_erf(float x) {  // 1 - 2^p(|x|); absolute error 1e-7
    const float t = fabsf(x);
    float p = -4.53608045e-5f;
    p = p * t + 4.45523037e-4f;
    p = p * t - 1.48948363e-3f;
    p = p * t - 7.74572720e-4f;
    p = p * t + 2.82536410e-2f;
    p = p * t - 1.48481607e-1f;
    p = p * t - 9.18416381e-1f;
    p = p * t - 1.62790859f;
    return copysignf(1.0f - exp2f(p * t), x);
}
""",
}
"""With float32's absolute accuracy only: results near zero have few correct digits."""

REDUCE_LANES = """\
// Reduction over LANES consecutive threads; every thread receives the result.
// `scratch` holds one element per warp of the block.
template <class Op, int LANES, class T> __device__ inline T reduce_lanes(T value, T* scratch) {
#pragma unroll
    for (int step = (LANES < 32 ? LANES : 32) / 2; step > 0; step /= 2)
        value = Op::combine(value, T(__shfl_xor_sync(~0u, value, step)));
    if constexpr (LANES > 32) {
        constexpr int WARPS = LANES / 32;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane == 0) scratch[warp] = value;
        __syncthreads();
        value = scratch[warp / WARPS * WARPS + lane % WARPS];
#pragma unroll
        for (int step = WARPS / 2; step > 0; step /= 2)
            value = Op::combine(value, T(__shfl_xor_sync(~0u, value, step)));
    }
    return value;
}
"""

SCAN_LANES = """\
// Exclusive scan over U packs per thread; packs with equal u are consecutive along LANES consecutive threads.
// `totals`: on entry the reduction of each pack, on return the prefix before it; `carry` links calls.
template <class Op, int LANES, int U, class T>
__device__ inline void scan_lanes(T (&totals)[U], T& carry, T* scratch) {
    constexpr int WIDTH = LANES < 32 ? LANES : 32, WARPS = LANES > 32 ? LANES / 32 : 1;
    const int lane = threadIdx.x % WIDTH, warp = threadIdx.x % LANES / WIDTH;
    scratch += threadIdx.x / LANES * (U * WARPS);
    T exclusive[U], inclusive[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        inclusive[u] = totals[u];
#pragma unroll
        for (int step = 1; step < WIDTH; step *= 2) {
            const T left = T(__shfl_up_sync(~0u, inclusive[u], step, WIDTH));
            if (lane >= step) inclusive[u] = Op::combine(left, inclusive[u]);
        }
        exclusive[u] = T(__shfl_up_sync(~0u, inclusive[u], 1, WIDTH));
        if (lane == 0) exclusive[u] = Op::template identity<T>();
        if (WARPS > 1 && lane == WIDTH - 1) scratch[u * WARPS + warp] = inclusive[u];
    }
    if constexpr (WARPS == 1) {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            totals[u] = Op::combine(carry, exclusive[u]);
            carry = Op::combine(carry, T(__shfl_sync(~0u, inclusive[u], WIDTH - 1, WIDTH)));
        }
    } else {
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; ++u) {
            T warp_totals = lane < WARPS ? scratch[u * WARPS + lane] : Op::template identity<T>();
#pragma unroll
            for (int step = 1; step < WARPS; step *= 2) {
                const T left = T(__shfl_up_sync(~0u, warp_totals, step));
                if (lane >= step) warp_totals = Op::combine(left, warp_totals);
            }
            const T previous_warps = T(__shfl_sync(~0u, warp_totals, warp > 0 ? warp - 1 : 0));
            const T prefix = warp > 0 ? Op::combine(previous_warps, exclusive[u]) : exclusive[u];
            totals[u] = Op::combine(carry, prefix);
            carry = Op::combine(carry, T(__shfl_sync(~0u, warp_totals, WARPS - 1)));
        }
        __syncthreads();
    }
}
"""

REDUCE_ACROSS = """\
// Reduction over LANES threads that are WIDTH apart, for each of N rows; every lane receives the result.
template <class Op, int LANES, int WIDTH, class T, int N>
__device__ inline void reduce_across(T (&values)[N], T* scratch) {
    if constexpr (LANES > 1) {
        const int lane = threadIdx.x / WIDTH, x = threadIdx.x % WIDTH;
#pragma unroll
        for (int j = 0; j < N; ++j) scratch[(lane * N + j) * WIDTH + x] = values[j];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < N * WIDTH; i += LANES * WIDTH) {
            T value = scratch[i];
#pragma unroll
            for (int other = 1; other < LANES; ++other)
                value = Op::combine(value, scratch[other * N * WIDTH + i]);
            scratch[i] = value;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = scratch[j * WIDTH + x];
    }
}
// Exclusive scan over the same lanes.
template <class Op, int LANES, int WIDTH, class T, int N>
__device__ inline void scan_across(T (&values)[N], T* scratch) {
    const int lane = threadIdx.x / WIDTH, x = threadIdx.x % WIDTH;
#pragma unroll
    for (int j = 0; j < N; ++j) scratch[(lane * N + j) * WIDTH + x] = values[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) {
        values[j] = Op::template identity<T>();
        for (int other = 0; other < lane; ++other)
            values[j] = Op::combine(values[j], scratch[(other * N + j) * WIDTH + x]);
    }
}
"""
