"""The C++ text that kernels begin with: helpers, 16-bit types, vectorizable functions, and the tile
product."""

PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

template <class T> static inline T maximum(T a, T b) { return a > b ? a : b; }
template <class T> static inline T minimum(T a, T b) { return a < b ? a : b; }
#ifdef __aarch64__  // fmax and fmin are one instruction, a comparison and selection several
template <> inline float maximum(float a, float b) { return std::fmax(a, b); }
template <> inline float minimum(float a, float b) { return std::fmin(a, b); }
#endif
static inline long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

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

MATH_FUNCTIONS = {
    "fast_exp": """\
// e^x = 2^(n + r) with integer n and a polynomial for 2^r; relative error 2e-7. The argument is clamped so
// that the result is a normal float.
static inline float fast_exp(float x) {
    x = minimum(maximum(x, -87.3f), 88.7f);
    const float shifted = x * 1.44269502f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    const float r = x * 1.44269502f - (shifted - 12582912.0f) + x * 1.92596299e-8f;  // 1 / log 2 in two parts
    float p = 0.000153532566f;
    p = p * r + 0.00133990039f;
    p = p * r + 0.00961843861f;
    p = p * r + 0.0555033216f;
    p = p * r + 0.240226479f;
    p = p * r + 0.693147203f;
    p = p * r + 1.0f;
    uint32_t bits, n;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&n, &shifted, sizeof n);
    bits += n << 23;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}
""",
    "fast_expm1": """\
static inline float fast_expm1(float x) {
    const float big = fast_exp(x) - 1.0f;
    float p = 0.0013888889f;
    p = p * x + 0.0083333333f;
    p = p * x + 0.0416666667f;
    p = p * x + 0.1666666667f;
    p = p * x + 0.5f;
    const float small = p * x * x + x;
    return std::fabs(x) < 0.25f ? small : big;
}
""",
    "fast_log": """\
// Natural logarithm of normal numbers, error 1e-7: the exponent, and a polynomial around 1 for the mantissa.
static inline float fast_log(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t shifted = bits - 0x3F3504F3u;  // the mantissa lies between sqrt(1/2) and sqrt(2)
    const uint32_t mantissa = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
    float m;
    std::memcpy(&m, &mantissa, sizeof m);
    const float e = float(int32_t(shifted) >> 23), f = m - 1.0f, z = f * f;
    float p = 0.0674655944f;
    p = p * f - 0.11679643f;
    p = p * f + 0.11890336f;
    p = p * f - 0.124051381f;
    p = p * f + 0.142192229f;
    p = p * f - 0.166680067f;
    p = p * f + 0.200021337f;
    p = p * f - 0.250000096f;
    p = p * f + 0.333333124f;
    float y = e * -2.12194440e-4f + (p * f * z - 0.5f * z) + f + e * 0.693359375f;
    y = x < INFINITY ? y : x;
    y = x > 0.0f ? y : NAN;
    return x == 0.0f ? -INFINITY : y;
}
""",
    "fast_log1p": """\
static inline float fast_log1p(float x) {
    const float u = 1.0f + x, d = u - 1.0f;
    const float y = fast_log(u) * (x / (d == 0.0f ? 1.0f : d));  // corrects the rounding of 1 + x
    return d == 0.0f ? x : u == INFINITY ? u : y;
}
""",
    "fast_tanh": """\
static inline float fast_tanh(float x) {
    const float a = std::fabs(x), z = x * x;
    float p = -0.00567930388f;
    p = p * z + 0.0206181219f;
    p = p * z - 0.0537339997f;
    p = p * z + 0.133313836f;
    p = p * z - 0.333332802f;
    const float small = p * z * x + x;
    const float big = 1.0f - 2.0f / (fast_exp(2.0f * a) + 1.0f);
    return a < 0.625f ? small : std::copysign(big, x);
}
""",
    "fast_erf": """\
// x P(x^2) up to 1, then 1 - e^-Q(x), clamped at 4, where it is 1; error 2e-7.
static inline float fast_erf(float x) {
    const float a = minimum(std::fabs(x), 4.0f), z = a * a;
    float p = 7.88911947e-05f;
    p = p * z - 0.000802084126f;
    p = p * z + 0.00518953534f;
    p = p * z - 0.0268544446f;
    p = p * z + 0.112836002f;
    p = p * z - 0.376126271f;
    p = p * z + 1.12837917f;
    float q = -0.000187972553f;
    q = q * a + 0.00296401431f;
    q = q * a - 0.021906508f;
    q = q * a + 0.103256267f;
    q = q * a + 0.637964927f;
    q = q * a + 1.12720232f;
    q = q * a + 0.000312459737f;
    const float big = std::copysign(1.0f - fast_exp(-q), x);
    return a < 1.0f ? p * x : big;
}
""",
}
"""Functions of float that g++ can vectorize, unlike calls of libm: no tables, no branches. The polynomials
are minimax fits."""

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
constexpr long panel_count(long columns) { return (columns + TILE_COLUMNS - 1) / TILE_COLUMNS; }
template <class T> struct Vector {
    typedef T type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T))));
};
template <class T>
static inline void multiply_tile(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c,
                                 long depth, long stride, bool first) {
    typedef typename Vector<T>::type vector;
    constexpr int LANES = VECTOR_BYTES / sizeof(T), VECTORS = TILE_COLUMNS / LANES;
    vector sum[TILE_ROWS][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v)
            sum[r][v] = first ? vector{} : *(const vector*)(c + r * stride + v * LANES);
    for (long k = 0; k < depth; ++k) {
        vector row[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) row[v] = *(const vector*)(b + k * TILE_COLUMNS + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < TILE_ROWS; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += row[v] * a[k * TILE_ROWS + r];
    }
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) *(vector*)(c + r * stride + v * LANES) = sum[r][v];
}
"""
