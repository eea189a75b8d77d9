// The operator on short signals with time last, any weights: the triangular product by blocks of 8 x 8 weights, of
// which only 15 differ, so that no matrix is ever read. A thread computes 8 positions of ROWS signals; the samples
// and the weights of a block lie in shared memory, 9 apart for every 8, so that no two threads meet in a bank.

#include "cuda_common.cuh"

#define WIDTH 8  // positions of a thread
#define ROWS 4   // signals of a thread

__device__ inline int spread(int i) { return i + i / WIDTH; }

template <bool BACKWARD, bool INNER = false>
__device__ inline void compute(const Problem& p, char* memory) {
    const int length = (int)p.padded, parts = length / WIDTH, row = spread(length + 1) + 1;
    const int group = blockDim.x / parts * ROWS;  // signals of a block, all of one channel
    double* sums = (double*)memory;               // [5, group * parts]
    Head* heads = (Head*)(sums + 5 * group * parts);
    T* weights = (T*)(heads + group);  // those of lags -WIDTH to length - 1
    T* data = weights + spread(length + WIDTH) + 1;
    const Index channel = blockIdx.x % p.channels, batch = blockIdx.x / p.channels * group;

    for (int i = threadIdx.x; i < length + WIDTH; i += blockDim.x) {
        int lag = i - WIDTH;
        weights[spread(i)] = lag >= 0 && lag < p.n ? p.near[channel * p.n + lag] : (T)0;
    }
    for (int g = threadIdx.x; g < group; g += blockDim.x)
        if (!BACKWARD && batch + g < p.batch) heads[g] = head_of(p, p.x + ((batch + g) * p.channels + channel) * p.n);
    __syncthreads();
    for (int i = threadIdx.x; i < group * length; i += blockDim.x) {
        int g = i / length, position = i % length;
        Index k = BACKWARD ? length - 1 - position : position;
        T found = (T)0;
        if (batch + g < p.batch && k < p.n) {
            const S* x = p.x + ((batch + g) * p.channels + channel) * p.n + k;
            T now = read(*x), before = k > 0 ? read(x[-1]) : (T)0, earlier = k > 1 ? read(x[-2]) : (T)0;
            found = BACKWARD ? now : difference(p, heads[g], k, now, before, earlier);
        }
        data[g * row + spread(position)] = found;
    }
    __syncthreads();

    const int first = threadIdx.x % parts * WIDTH, signals = threadIdx.x / parts * ROWS;
    const bool works = signals < group;
    T y[ROWS][WIDTH], window[2 * WIDTH - 1];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) y[r][i] = (T)0;
#pragma unroll
    for (int i = 0; i < 2 * WIDTH - 1; ++i) window[i] = works ? weights[spread(first + i + 1)] : (T)0;
    for (int from = 0; works && from <= first; from += WIDTH) {  // the window holds lags first - from - 7 to + 7
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const T* x = data + (signals + r) * row + spread(from);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                T sample = x[j];
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) y[r][i] += window[WIDTH - 1 + i - j] * sample;
            }
        }
        if (from == first) break;
#pragma unroll
        for (int i = 2 * WIDTH - 2; i >= WIDTH; --i) window[i] = window[i - WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) window[i] = weights[spread(first - from - WIDTH + i + 1)];
    }

    if (BACKWARD && works) {
        for (int r = 0; r < ROWS; ++r) {
            double found[5] = {0, 0, 0, 0, 0};
            for (int i = 0; i < WIDTH; ++i) {
                Index k = length - 1 - (first + i);
                if (k >= p.n) continue;
                found[0] += (double)y[r][i];
                found[1] += (double)k * (double)y[r][i];
                for (int j = 0; j < p.terms; ++j)
                    found[2 + j] += (double)data[(signals + r) * row + spread(first + i)] *
                                    (double)p.columns[(j * p.channels + channel) * p.n + k];
            }
            for (int j = 0; j < 5; ++j) sums[(j * group + signals + r) * parts + first / WIDTH] = found[j];
        }
    }
    __syncthreads();  // the data have been read
    if (works)
        for (int r = 0; r < ROWS; ++r)
            for (int i = 0; i < WIDTH; ++i) data[(signals + r) * row + spread(first + i)] = y[r][i];
    __syncthreads();
    double product = 0;
    for (int i = threadIdx.x; i < group * length; i += blockDim.x) {
        int g = i / length, position = i % length;
        Index k = BACKWARD ? length - 1 - position : position;
        if (batch + g >= p.batch || k >= p.n || (BACKWARD && k < 4)) continue;
        const T* e = data + g * row;
        T now = e[spread(position)];
        T later = BACKWARD && position > 0 ? e[spread(position - 1)] : (T)0;
        T last = BACKWARD && position > 1 ? e[spread(position - 2)] : (T)0;
        T found = BACKWARD ? difference_back(p.m, now, later, last) : now + boundary(p, heads[g], channel, k);
        Index there = ((batch + g) * p.channels + channel) * p.n + k;
        if (INNER)
            product += (double)found * (double)read(p.against[there]);
        else
            write(p.y[there], found);
    }
    if (INNER) p.products[(Index)blockIdx.x * blockDim.x + threadIdx.x] = product;
    if (BACKWARD) {
        for (int g = threadIdx.x; g < group; g += blockDim.x) {
            if (batch + g >= p.batch) continue;
            double record[RECORD];
            for (int k = 0; k < HEAD; ++k) record[k] = k < p.n ? (double)data[g * row + spread(length - 1 - k)] : 0.0;
            for (int j = 0; j < 5; ++j) {
                record[HEAD + j] = 0;
                for (int i = 0; i < parts; ++i) record[HEAD + j] += sums[(j * group + g) * parts + i];
            }
            finish_head(p, record, p.y + ((batch + g) * p.channels + channel) * p.n);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) forward(const Problem p) {
    SHARED(char, memory);
    compute<false>(p, memory);
}

extern "C" __global__ void __launch_bounds__(128) backward(const Problem p) {
    SHARED(char, memory);
    compute<true>(p, memory);
}

extern "C" __global__ void __launch_bounds__(128) inner(const Problem p) {
    SHARED(char, memory);
    compute<false, true>(p, memory);
}
