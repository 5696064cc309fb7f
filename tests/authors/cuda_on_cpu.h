// Runs CUDA C++ kernels on the CPU, for tests. The threads of a block are fibers that switch at barriers and shuffles.
//
// A fiber runs until it must wait for others. A thread that reads shared data without the barrier that it needs therefore
// reads a stale value; every third block runs its threads in descending order to expose both directions. Misaligned
// accesses, barriers that some threads never reach and shuffles outside the warp end the launch with an error code.
// Blocks run one by one, or as processes if they wait for each other. Asynchronous copies arrive when the thread waits for them, and not before.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cmath>
#include <deque>
#include <sys/mman.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include <ucontext.h>

#define __global__ static
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

using cudaStream_t = void*;
using cudaError_t = int;
enum { cudaErrorMisalignedAddress = 716, cudaErrorIllegalAddress = 700, cudaErrorLaunchTimeout = 702, cudaErrorCooperativeLaunchTooLarge = 720, cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16 };

struct uint3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

namespace cuda_on_cpu {

struct Group {  // threads that share a barrier
    unsigned size = 0, arrived = 0, generation = 0;
};
struct Fiber {
    jmp_buf here;
    ucontext_t start;
    void* stack = nullptr;
    bool started = false, done = false;
};
constexpr size_t STACK = 256 * 1024;
static Fiber fibers[1024];
static Group block, warps[32];
static unsigned char slots[1024][16];
alignas(1024) static unsigned char dynamic[228 * 1024];
static jmp_buf scheduler;
static unsigned current;
static bool progress;
static int error;
static void (*kernel)(void*);
static void* arguments;

static void discard_copies();
static void yield() {
    const unsigned me = current;
    const uint3 thread = threadIdx;
    if (!_setjmp(fibers[me].here)) _longjmp(scheduler, 1);
    threadIdx = thread;
}
static void barrier(Group& group) {
    const unsigned now = group.generation;
    progress = true;
    if (++group.arrived == group.size) {
        group.arrived = 0;
        ++group.generation;
        return;
    }
    while (group.generation == now) yield();
    progress = true;
}
static void body() {
    kernel(arguments);
    fibers[current].done = progress = true;
    _longjmp(scheduler, 1);
}
static void run_block(unsigned threads, bool descending) {
    block = {threads, 0, 0};
    for (unsigned w = 0; w * 32 < threads; ++w) warps[w] = {threads - w * 32 < 32 ? threads - w * 32 : 32, 0, 0};
    unsigned remaining = threads;
    for (unsigned i = 0; i < threads; ++i) fibers[i].started = fibers[i].done = false;
    discard_copies();
    while (remaining) {
        progress = false;
        remaining = 0;
        for (unsigned k = 0; k < threads; ++k) {
            const unsigned i = descending ? threads - 1 - k : k;
            Fiber& fiber = fibers[i];
            if (fiber.done) continue;
            current = i;
            if (!_setjmp(scheduler)) {
                if (fiber.started) _longjmp(fiber.here, 1);
                fiber.started = true;
                if (!fiber.stack) fiber.stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                getcontext(&fiber.start);
                fiber.start.uc_stack.ss_sp = fiber.stack;
                fiber.start.uc_stack.ss_size = STACK;
                fiber.start.uc_link = nullptr;
                makecontext(&fiber.start, body, 0);
                threadIdx = {i, 0, 0};
                setcontext(&fiber.start);
            }
            remaining += !fibers[current].done;
        }
        if (remaining && !progress) {  // deadlock: the others have exited or wait elsewhere
            error = cudaErrorLaunchTimeout;
            return;
        }
    }
}
template <class F> void launch(dim3 grid, dim3 threads, size_t shared, F call) {
    if (error || threads.x > 1024 || shared > sizeof dynamic) {
        error = error ? error : 1;
        return;
    }
    gridDim = grid;
    blockDim = threads;
    kernel = [](void* callable) { (*(F*)callable)(); };
    arguments = &call;
    for (unsigned b = 0; b < grid.x && !error; ++b) {
        blockIdx = {b, 0, 0};
        memset(dynamic, 0xFF, shared);
        run_block(threads.x, b % 3 == 2);
    }
}
// Blocks that wait for each other: each is a process. What they store must be in shared memory.
template <class F> void launch_together(dim3 grid, dim3 threads, size_t shared, F call) {
    gridDim = grid;
    blockDim = threads;
    kernel = [](void* callable) { (*(F*)callable)(); };
    arguments = &call;
    pid_t blocks[128];
    for (unsigned b = 0; b < grid.x; ++b) {
        blocks[b] = fork();
        if (blocks[b]) continue;
        blockIdx = {b, 0, 0};
        memset(dynamic, 0xFF, shared);
        run_block(threads.x, b % 3 == 2);
        _exit(error != 0);
    }
    for (unsigned b = 0; b < grid.x; ++b) {
        int status = 0;
        waitpid(blocks[b], &status, 0);
        if (status) error = cudaErrorLaunchTimeout;
    }
}
template <class T> const T* aligned(const T* address) {
    if (size_t(address) % alignof(T)) error = cudaErrorMisalignedAddress;
    return address;
}
template <class T> T shuffle(T value, unsigned from) {
    Group& warp = warps[threadIdx.x / 32];
    memcpy(slots[threadIdx.x], &value, sizeof value);
    barrier(warp);
    T result = value;
    if (from % 32 < warp.size && from / 32 == threadIdx.x / 32) memcpy(&result, slots[from], sizeof result);
    else error = cudaErrorIllegalAddress;
    barrier(warp);
    return result;
}

}  // namespace cuda_on_cpu

static int cudaGetLastError() {
    const int code = cuda_on_cpu::error;
    cuda_on_cpu::error = 0;
    return code;
}
template <class F> int cudaFuncSetAttribute(F, int, size_t bytes) { return bytes > 227 * 1024; }
static inline void __syncwarp() { cuda_on_cpu::barrier(cuda_on_cpu::warps[threadIdx.x / 32]); }
static inline uint4 load_published(const float* address) {
    cuda_on_cpu::aligned((const uint4*)address);
    const volatile unsigned* v = (const volatile unsigned*)address;
    return {v[0], v[1], v[2], v[3]};
}
static inline void publish(float* address, unsigned bits) { *(volatile unsigned*)address = bits; }
static inline void wait_for_others() {
    cuda_on_cpu::progress = true;
    sched_yield();
    cuda_on_cpu::yield();
}
static int count_processors() { return 128; }
static inline void __syncthreads() { cuda_on_cpu::barrier(cuda_on_cpu::block); }

template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return cuda_on_cpu::shuffle(value, threadIdx.x ^ unsigned(mask)); }
template <class T> T __shfl_sync(unsigned, T value, int from, int width = 32) {
    return cuda_on_cpu::shuffle(value, threadIdx.x / width * width + unsigned(from) % width);
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
    return cuda_on_cpu::shuffle(value, threadIdx.x % width >= by ? threadIdx.x - by : threadIdx.x);
}
template <class T> T __ldg(const T* from) {
    cuda_on_cpu::aligned(from);
    T value;
    memcpy(&value, from, sizeof value);
    return value;
}
template <class T> void __stwb(T* to, T value) {
    cuda_on_cpu::aligned(to);
    memcpy(to, &value, sizeof value);
}

// --- tensor cores and asynchronous copies: the functions of INSTRUCTIONS, with the register layouts of PTX ------

namespace cuda_on_cpu {
struct Copy {
    unsigned char* target;
    const unsigned char* source;
    int bytes;
    bool in_bounds;
    unsigned group;
};
static std::deque<Copy> copies[1024];
static unsigned committed[1024];  // groups of each thread
static struct { unsigned a[4], b[2]; } operands[1024];
static const unsigned char* matrix_rows[1024];

template <class T> float term(const unsigned* words, int place) {
    T value;
    memcpy(&value, (const unsigned char*)words + place * sizeof(T), sizeof(T));
    return float(value);
}
}  // namespace cuda_on_cpu

template <int BYTES> void async_copy(void* target, const void* source, bool in_bounds) {
    using namespace cuda_on_cpu;
    if (size_t(target) % BYTES || (in_bounds && size_t(source) % BYTES)) error = cudaErrorMisalignedAddress;
    if ((unsigned char*)target < dynamic || (unsigned char*)target + BYTES > dynamic + sizeof dynamic) error = cudaErrorIllegalAddress;
    else memset(target, 0xFF, BYTES);
    copies[threadIdx.x].push_back({(unsigned char*)target, (const unsigned char*)source, BYTES, in_bounds, committed[threadIdx.x]});
}
static inline void async_commit() { ++cuda_on_cpu::committed[threadIdx.x]; }
template <int PENDING> void async_wait() {
    using namespace cuda_on_cpu;
    auto& pending = copies[threadIdx.x];
    while (!error && !pending.empty() && pending.front().group + PENDING < committed[threadIdx.x]) {
        const Copy copy = pending.front();
        pending.pop_front();
        if (copy.in_bounds) memcpy(copy.target, copy.source, copy.bytes);
        else memset(copy.target, 0, copy.bytes);
    }
}
template <bool TRANSPOSED> void load_matrix(unsigned (&r)[4], const void* row_address) {
    using namespace cuda_on_cpu;
    if (size_t(row_address) % 16) error = cudaErrorMisalignedAddress;
    const unsigned lane = threadIdx.x % 32, base = threadIdx.x - lane;
    matrix_rows[threadIdx.x] = (const unsigned char*)row_address;
    barrier(warps[threadIdx.x / 32]);
    for (int q = 0; q < 4; ++q) {
        for (unsigned h = 0; h < 2; ++h) {
            const unsigned row = TRANSPOSED ? lane % 4 * 2 + h : lane / 4, column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + h;
            memcpy((unsigned char*)&r[q] + 2 * h, matrix_rows[base + q * 8 + row] + 2 * column, 2);
        }
    }
    barrier(warps[threadIdx.x / 32]);
}
#define __expf by_exp2f  // glibc has other functions with these names
#define __logf by_log2f
static inline float by_exp2f(float x) { return exp2f(1.44269504f * x); }
static inline float by_log2f(float x) { return 0.693147182f * log2f(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float value) {
        uint32_t all;
        memcpy(&all, &value, 4);
        bits = value != value ? 0x7FC0 : uint16_t((all + 0x7FFF + ((all >> 16) & 1)) >> 16);
    }
    operator float() const {
        const uint32_t all = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &all, 4);
        return value;
    }
};
#ifdef __aarch64__
using Half = __fp16;
#else
using Half = _Float16;
#endif
struct __half {
    Half value;
    __half() = default;
    explicit __half(float number) : value(Half(number)) {}
    operator float() const { return float(value); }
};

enum MmaType { TF32, BF16, F16 };
template <MmaType TYPE> void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    using namespace cuda_on_cpu;
    constexpr int PER_REGISTER = TYPE == TF32 ? 1 : 2;  // terms of the sum
    const unsigned lane = threadIdx.x % 32, base = threadIdx.x - lane, ignored = TYPE == TF32 ? 0x1FFF : 0;
    for (int i = 0; i < 4; ++i) operands[threadIdx.x].a[i] = a[i] & ~ignored;
    operands[threadIdx.x].b[0] = b0 & ~ignored;
    operands[threadIdx.x].b[1] = b1 & ~ignored;
    barrier(warps[threadIdx.x / 32]);
    for (int c = 0; c < 4; ++c) {
        const unsigned row = lane / 4, high = c / 2, column = lane % 4 * 2 + c % 2;
        for (int k = 0; k < 8 * PER_REGISTER; ++k) {
            const int half = k / (4 * PER_REGISTER), word = k / PER_REGISTER % 4, place = k % PER_REGISTER;
            const unsigned* x = &operands[base + row * 4 + word].a[high + 2 * half];
            const unsigned* y = &operands[base + column * 4 + word].b[half];
            if (TYPE == TF32) d[c] += term<float>(x, 0) * term<float>(y, 0);
            else if (TYPE == BF16) d[c] += term<__nv_bfloat16>(x, place) * term<__nv_bfloat16>(y, place);
            else d[c] += term<__half>(x, place) * term<__half>(y, place);
        }
    }
    barrier(warps[threadIdx.x / 32]);
}

// --- TMA and warpgroup instructions: the functions of COPIES and INSTRUCTIONS_OF ---------------------------------
//
// Both happen as late as they may: a copy when somebody waits for its barrier, a product when its warpgroup waits for it.
// The target of a copy is overwritten when the copy starts, so that a product that still reads it goes wrong.

struct Matrices {
    const void* data;
    uint64_t depth, rows, count, row_bytes, matrix_bytes;
};
struct CUtensorMap {
    CUtensorMapDataType type;
    Matrices m;
    int box_rows, element_bytes;
};
struct alignas(8) Barrier {
    int bytes;  // announced and not yet copied
    uint16_t pending;
    uint8_t arrivals, phase;
};
static inline int encode_map(CUtensorMap* map, CUtensorMapDataType type, const Matrices& m, int rows, int element_bytes) {
    *map = {type, m, rows, element_bytes};
    const bool aligned = size_t(m.data) % 16 == 0 && m.row_bytes % 16 == 0 && m.matrix_bytes % 16 == 0;
    return aligned && rows <= 256 ? 0 : cudaErrorMisalignedAddress;
}
namespace cuda_on_cpu {
struct TileCopy {
    unsigned char* target;
    const CUtensorMap* map;
    int k, row, batch;
    Barrier* barrier;
};
struct Product {
    float* d;
    uint64_t a, b;
    int type, size;
    unsigned group;
};
static std::deque<TileCopy> tile_copies;
static std::deque<Product> products[1024];
static unsigned product_groups[1024];

static void end_phase(Barrier* barrier) {
    if (barrier->pending || barrier->bytes) return;
    barrier->pending = barrier->arrivals;
    barrier->phase ^= 1;
    progress = true;
}
static unsigned swizzled(unsigned offset) { return offset ^ ((offset >> 7 & 7) << 4); }
static void copy_now(const TileCopy& copy) {
    const CUtensorMap& map = *copy.map;
    const unsigned base = copy.target - dynamic;
    for (int r = 0; r < map.box_rows; ++r) {
        for (int x = 0; x < 128 / map.element_bytes; ++x) {
            const uint64_t row = copy.row + r, k = copy.k + x;
            uint32_t bits = 0;
            if (row < map.m.rows && k < map.m.depth && uint64_t(copy.batch) < map.m.count) {
                const unsigned char* from = (const unsigned char*)map.m.data + copy.batch * map.m.matrix_bytes + row * map.m.row_bytes;
                memcpy(&bits, from + k * map.element_bytes, map.element_bytes);
            }
            if (map.type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32) bits = (bits + 0x1000) & ~0x1FFFu;
            memcpy(dynamic + swizzled(base + r * 128 + x * map.element_bytes), &bits, map.element_bytes);
        }
    }
    copy.barrier->bytes -= map.box_rows * 128;
    end_phase(copy.barrier);
}
template <class T> float tile_element(uint64_t descriptor, int row, int place) {
    T value;
    memcpy(&value, dynamic + swizzled(unsigned(descriptor << 4) + row * 128 + place * sizeof(T)), sizeof value);
    return float(value);
}
template <class T> void multiply(const Product& p) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < p.size / 2; ++i) {
        const int row = first + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        for (int k = 0; k < int(32 / sizeof(T)); ++k) p.d[i] += tile_element<T>(p.a, row, k) * tile_element<T>(p.b, column, k);
    }
}
static void start_product(float* d, int size, int type, uint64_t a, uint64_t b) {
    products[threadIdx.x].push_back({d, a, b, type, size, product_groups[threadIdx.x]});
}
}  // namespace cuda_on_cpu

static inline void barrier_init(Barrier* barrier, int arrivals) { *barrier = {0, uint16_t(arrivals), uint8_t(arrivals), 0}; }
static inline void barriers_ready() {}
static inline void barrier_arrive(Barrier* barrier) {
    if (!barrier->pending--) cuda_on_cpu::error = cudaErrorIllegalAddress;
    cuda_on_cpu::end_phase(barrier);
}
static inline void barrier_expect(Barrier* barrier, int bytes) {
    barrier->bytes += bytes;
    barrier_arrive(barrier);
}
static inline void barrier_wait(Barrier* barrier, int parity) {
    using namespace cuda_on_cpu;
    for (;;) {
        for (size_t i = 0; i < tile_copies.size(); ++i) {
            if (tile_copies[i].barrier != barrier) continue;
            copy_now(tile_copies[i]);
            tile_copies.erase(tile_copies.begin() + i--);
        }
        if (barrier->phase != parity) return;
        yield();
    }
}
static inline void copy_tile(void* target, const CUtensorMap* map, int k, int row, int batch, Barrier* barrier) {
    using namespace cuda_on_cpu;
    const unsigned char* to = (unsigned char*)target;
    if (to < dynamic || to + map->box_rows * 128 > dynamic + sizeof dynamic || (to - dynamic) % 1024) error = cudaErrorIllegalAddress;
    else memset(target, 0xFF, map->box_rows * 128);
    tile_copies.push_back({(unsigned char*)target, map, k, row, batch, barrier});
}
static inline uint64_t tile_descriptor(const void* tile) { return uint64_t((const unsigned char*)tile - cuda_on_cpu::dynamic) >> 4; }
static inline void wgmma_fence() {}
static inline void wgmma_commit() { ++cuda_on_cpu::product_groups[threadIdx.x]; }
template <int PENDING> void wgmma_wait() {
    using namespace cuda_on_cpu;
    auto& pending = products[threadIdx.x];
    while (!pending.empty() && pending.front().group + PENDING < product_groups[threadIdx.x]) {
        const Product p = pending.front();
        pending.pop_front();
        if (p.type == 0) multiply<float>(p);
        else if (p.type == 1) multiply<__nv_bfloat16>(p);
        else multiply<__half>(p);
    }
    barrier(warps[threadIdx.x / 32]);  // all lanes read before one of them says so
}
template <int COUNT> void release_registers() {}
template <int COUNT> void request_registers() {}
template <int N> void wgmma_tf32(float (&d)[N][4], uint64_t a, uint64_t b) { cuda_on_cpu::start_product(&d[0][0], 8 * N, 0, a, b); }
template <int N> void wgmma_bf16(float (&d)[N][4], uint64_t a, uint64_t b) { cuda_on_cpu::start_product(&d[0][0], 8 * N, 1, a, b); }
template <int N> void wgmma_f16(float (&d)[N][4], uint64_t a, uint64_t b) { cuda_on_cpu::start_product(&d[0][0], 8 * N, 2, a, b); }

static void cuda_on_cpu::discard_copies() {
    for (auto& pending : copies) pending.clear();
    for (auto& pending : products) pending.clear();
    tile_copies.clear();
}
