// A block's threads as fibres on one thread of the host, so that a kernel's own source runs where there is no device.
//
// A fibre goes on until the next barrier; when all stand there, they go on in another order, so that a barrier that is
// missing shows as another result. Shared memory is poisoned before each block, and ends with a canary.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __restrict__
#define __launch_bounds__(n)
#define SHARED(type, name) type* name = (type*)shim::shared

struct Three {
    unsigned x, y, z;
};

static Three threadIdx, blockIdx, blockDim, gridDim;

namespace shim {
static char* shared;
static ucontext_t scheduler;
static std::vector<ucontext_t> fibres;
static std::vector<int> state;  // 0 runs, 1 stands at a barrier, 2 is done
static unsigned current;
static void (*body)();

static void enter() {
    body();
    state[current] = 2;
    swapcontext(&fibres[current], &scheduler);
}

// Run one block; return 0, or 1 where some threads stand at a barrier and others have ended.
static int block(unsigned threads, bool reversed) {
    static std::vector<char> stacks;
    const size_t size = 1 << 17;
    stacks.resize(threads * size);
    fibres.resize(threads);
    state.assign(threads, 0);
    for (unsigned t = 0; t < threads; ++t) {
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = stacks.data() + t * size;
        fibres[t].uc_stack.ss_size = size;
        fibres[t].uc_link = &scheduler;
        makecontext(&fibres[t], enter, 0);
    }
    for (;;) {
        unsigned waiting = 0, done = 0;
        for (unsigned i = 0; i < threads; ++i) {
            unsigned t = reversed ? threads - 1 - i : i;
            if (state[t] != 2) {
                current = t;
                threadIdx = {t, 0, 0};
                swapcontext(&scheduler, &fibres[t]);
            }
            waiting += state[t] == 1;
            done += state[t] == 2;
        }
        if (done == threads) return 0;
        if (done > 0 && waiting > 0) return 1;
        reversed = !reversed;
    }
}

static int launch(void (*kernel)(), unsigned grid, unsigned threads, size_t bytes, bool reversed) {
    const size_t canary = 256;
    char* memory = (char*)aligned_alloc(128, (bytes + 2 * canary + 127) / 128 * 128);
    shared = memory;
    body = kernel;
    blockDim = {threads, 1, 1};
    gridDim = {grid, 1, 1};
    int fault = 0;
    for (unsigned i = 0; i < grid && !fault; ++i) {
        unsigned b = reversed ? grid - 1 - i : i;
        memset(memory, 0xff, bytes + canary);  // not a number, and -1
        blockIdx = {b, 0, 0};
        fault = block(threads, reversed);
        for (size_t k = 0; k < canary; ++k)
            if ((unsigned char)memory[bytes + k] != 0xff) fault = 2;  // beyond the end
    }
    free(memory);
    return fault;
}
}  // namespace shim

static void __syncthreads() {
    shim::state[shim::current] = 1;
    swapcontext(&shim::fibres[shim::current], &shim::scheduler);
}

// What a device has for half precision, by the numbers' own arithmetic.

static unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float of_half(unsigned short bits) {
    int exponent = bits >> 10 & 31, digits = bits & 1023;
    double size = exponent == 31 ? (digits ? NAN : INFINITY)
                                 : ldexp(exponent ? 1024 + digits : digits, (exponent ? exponent : 1) - 25);
    return (float)(bits >> 15 ? -size : size);
}

static unsigned short to_half(float x) {
    unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    double size = fabs((double)x);
    if (std::isnan(x)) return 0x7fff;
    if (size >= 65520.0) return sign | 0x7c00;  // half way beyond the largest
    int exponent = size < ldexp(1.0, -14) ? -14 : ilogb(size);
    int digits = (int)nearbyint(ldexp(size, 10 - exponent));  // to the even one of two; 2048 carries by itself
    return sign | (digits < 1024 ? digits : (unsigned short)((exponent + 14) * 1024 + digits));
}
