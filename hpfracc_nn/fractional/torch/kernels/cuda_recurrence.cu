// The operator on signals that lie side by side, time in the middle: a thread has one signal, its states stay in
// registers from the first sample to the last. Neighbouring threads read neighbouring samples; constants lie in shared
// memory, where all threads read them at once. STATES is defined by who compiles it.

#include "cuda_common.cuh"

template <bool BACKWARD, bool ENDS, bool INNER = false>
__device__ inline void compute(const Problem& p, char* memory) {
    double* decay = (double*)memory;
    T* inward = (T*)(decay + STATES + STATES % 2);
    T *outward = inward + STATES * CHUNK, *near = outward + STATES * CHUNK;
    for (int i = threadIdx.x; i < STATES * CHUNK; i += blockDim.x) {
        inward[i] = p.inward[i];
        outward[i] = p.outward[i];
    }
    for (int i = threadIdx.x; i < CHUNK; i += blockDim.x) near[i] = p.near[i];
    for (int q = threadIdx.x; q < STATES; q += blockDim.x) decay[q] = p.decay[q];
    __syncthreads();

    const Index signals = p.batch * p.width, blocks = (signals + blockDim.x - 1) / blockDim.x;
    const Index signal = blockIdx.x % blocks * blockDim.x + threadIdx.x, segment = blockIdx.x / blocks;
    const Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (INNER) p.products[at] = 0;
    if (signal >= signals) return;
    const Index whole = p.padded / CHUNK, begin = segment * p.segment;
    const Index end = begin + p.segment < whole ? begin + p.segment : whole;
    const S *data = p.x + origin(p, signal), *against = p.against + origin(p, signal);
    S* result = p.y + origin(p, signal);

    double state[STATES];
#pragma unroll
    for (int q = 0; q < STATES; ++q)
        state[q] = !ENDS && p.segments > 1 ? p.states[place(p, signal, segment, q)] : 0.0;
    Head head;
    if (!BACKWARD) head = head_of(p, data);
    T before = (T)0, earlier = (T)0;  // the last two of the data, backward of the product: 0 where a segment begins
    if (!BACKWARD && begin > 0) {
        before = read(data[(begin * CHUNK - 1) * p.width]);
        earlier = read(data[(begin * CHUNK - 2) * p.width]);
    }
    double sums[5] = {0, 0, 0, 0, 0}, product = 0;

    for (Index chunk = begin; chunk < end; ++chunk) {
        T x[CHUNK], y[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            Index k = BACKWARD ? p.padded - 1 - (chunk * CHUNK + i) : chunk * CHUNK + i;
            T now = k < p.n ? read(data[k * p.width]) : (T)0;
            if (BACKWARD) {
                x[i] = now;
            } else {
                x[i] = k < p.n ? difference(p, head, k, now, before, earlier) : (T)0;
                earlier = before;
                before = now;
            }
        }
        if (!ENDS) {
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                y[i] = (T)0;
#pragma unroll
                for (int j = 0; j <= i; ++j) y[i] += near[i - j] * x[j];
            }
        }
#pragma unroll
        for (int q = 0; q < STATES; ++q) {
            asm volatile("" ::: "memory");  // else all constants are read ahead, into more registers than there are
            T s = (T)state[q], added = (T)0;
#pragma unroll
            for (int i = 0; i < CHUNK; i += PACKED) {
                Pack in = *(const Pack*)(inward + q * CHUNK + i), out = *(const Pack*)(outward + q * CHUNK + i);
#pragma unroll
                for (int j = 0; j < PACKED; ++j) {
                    added += in.of[j] * x[i + j];
                    if (!ENDS) y[i + j] += out.of[j] * s;
                }
            }
            state[q] = state[q] * decay[q] + (double)added;
        }
        if (ENDS) continue;
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            Index k = BACKWARD ? p.padded - 1 - (chunk * CHUNK + i) : chunk * CHUNK + i;
            if (k >= p.n) continue;
            if (!BACKWARD) {
                T found = y[i] + boundary(p, head, 0, k);
                if (INNER)
                    product += (double)found * (double)read(against[k * p.width]);
                else
                    write(result[k * p.width], found);
                continue;
            }
            write(result[k * p.width], difference_back(p.m, y[i], before, earlier));
            earlier = before;
            before = y[i];
            if (is_summed(p)) {
                sums[0] += (double)y[i];
                sums[1] += (double)k * (double)y[i];
            }
#pragma unroll
            for (int j = 0; j < 3; ++j)
                if (j < p.terms) sums[2 + j] += (double)x[i] * (double)p.columns[j * p.n + k];
        }
        if (BACKWARD && chunk == begin)
            for (int i = 0; i < 2; ++i) p.records[(signal * p.segments + segment) * RECORD + FIRST + i] = (double)y[i];
        if (BACKWARD && chunk + 1 == end) {
            double* record = p.records + (signal * p.segments + segment) * RECORD;
            Index last = p.padded - end * CHUNK;  // the earliest time of the segment
#pragma unroll
            for (int k = 0; k < HEAD; ++k) record[k] = last + k < p.n ? (double)y[CHUNK - 1 - k] : 0.0;
            for (int j = 0; j < 5; ++j) record[HEAD + j] = sums[j];
        }
    }
    if (INNER) p.products[at] = product;
    if (ENDS) {
#pragma unroll
        for (int q = 0; q < STATES; ++q) p.states[place(p, signal, segment, q)] = state[q];
    }
}

extern "C" __global__ void __launch_bounds__(64) forward(const Problem p) {
    SHARED(char, memory);
    compute<false, false>(p, memory);
}

extern "C" __global__ void __launch_bounds__(64) forward_ends(const Problem p) {
    SHARED(char, memory);
    compute<false, true>(p, memory);
}

extern "C" __global__ void __launch_bounds__(64) backward(const Problem p) {
    SHARED(char, memory);
    compute<true, false>(p, memory);
}

extern "C" __global__ void __launch_bounds__(64) backward_ends(const Problem p) {
    SHARED(char, memory);
    compute<true, true>(p, memory);
}

extern "C" __global__ void __launch_bounds__(64) inner(const Problem p) {
    SHARED(char, memory);
    compute<false, false, true>(p, memory);
}
