"""The C++ source that kernels begin with: helpers, 16-bit types, and the product of tiles."""

PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// NaN if one operand is NaN, as in torch. For constants, the compiler drops the test `b != b`.
template <class T> static inline T maximum(T a, T b) { return b > a || b != b ? b : a; }
template <class T> static inline T minimum(T a, T b) { return b < a || b != b ? b : a; }
#pragma omp declare reduction(maximum : double, int64_t : omp_out = maximum(omp_out, omp_in)) \\
    initializer(omp_priv = omp_orig)
#pragma omp declare reduction(minimum : double, int64_t : omp_out = minimum(omp_out, omp_in)) \\
    initializer(omp_priv = omp_orig)
// Faster versions for operands that are not NaN, or whose NaN does not matter.
template <class T> static inline T larger(T a, T b) { return a > b ? a : b; }
template <class T> static inline T smaller(T a, T b) { return a < b ? a : b; }
#ifdef __aarch64__  // fmax and fmin are one instruction; comparing and selecting takes several
template <> inline float larger(float a, float b) { return std::fmax(a, b); }
template <> inline float smaller(float a, float b) { return std::fmin(a, b); }
#endif
static constexpr long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

// Combine the partial results of a reduction.
template <class T, int N> static inline double reduce_sum(const T (&partial)[N]) {
    double result = 0;
    for (T value : partial) result += value;
    return result;
}
template <class T, int N> static inline double reduce_prod(const T (&partial)[N]) {
    double result = 1;
    for (T value : partial) result *= value;
    return result;
}
template <class T, int N> static inline T reduce_max(const T (&partial)[N]) {
    T result = partial[0];
    for (T value : partial) result = maximum(result, value);
    return result;
}
template <class T, int N> static inline T reduce_min(const T (&partial)[N]) {
    T result = partial[0];
    for (T value : partial) result = minimum(result, value);
    return result;
}
"""

HALF_TYPE = """\
#if defined(__aarch64__)
using Half = __fp16;
#elif defined(__clang__) || __GNUC__ >= 13
using Half = _Float16;
#else  // g++ 12 has no 16-bit floating type in C++
#include <immintrin.h>
struct Half {
    unsigned short bits;
    Half() = default;
    explicit Half(float value) : bits(_cvtss_sh(value, 0)) {}
    operator float() const { return _cvtsh_ss(bits); }
};
#endif
"""

BFLOAT16_CONVERSIONS = """\
static inline float bfloat16_to_float(uint16_t value_bits) {
    const uint32_t bits = uint32_t(value_bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint16_t float_to_bfloat16(float value) {  // rounds to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7FC0 : uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
"""

MULTIPLY_TILE = """\
// Multiplies packed operands into a tile of results that stays in registers: one column of the left operand
// times one row of the right operand at a time.
#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, TILE_ROWS = 12, TILE_COLUMNS = 32;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_COLUMNS = 16;
#else
constexpr int VECTOR_BYTES = 16, TILE_ROWS = 5, TILE_COLUMNS = 16;
#endif
#if defined(__AVX__)
constexpr bool HAS_MASKS = true;  // whether a vector can be loaded and stored in part
#else
constexpr bool HAS_MASKS = false;
#endif
// The rows of a tile if `rows` are shared evenly between as few tiles as possible.
constexpr int even_rows(long rows) { return ceil_div(rows, ceil_div(rows, TILE_ROWS)); }
constexpr long panel_count(long columns) { return (columns + TILE_COLUMNS - 1) / TILE_COLUMNS; }
template <class T> struct Vector {
    typedef T type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T))));
};
template <int ROWS, class T>
static inline void multiply_tile(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c,
                                 long depth, long stride, bool first) {
    typedef typename Vector<T>::type vector;
    constexpr int LANES = VECTOR_BYTES / sizeof(T), VECTORS = TILE_COLUMNS / LANES;
    vector sum[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v)
            sum[r][v] = first ? vector{} : *(const vector*)(c + r * stride + v * LANES);
    for (long k = 0; k < depth; ++k) {
        vector row[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) row[v] = *(const vector*)(b + k * TILE_COLUMNS + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += row[v] * a[k * ROWS + r];
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) *(vector*)(c + r * stride + v * LANES) = sum[r][v];
}
"""
