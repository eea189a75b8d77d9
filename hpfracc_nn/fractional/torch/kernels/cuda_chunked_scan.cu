// The operator on signals with time last, in one pass over the data: a thread has the samples of a chunk or two in its
// registers, the states of all chunks of a tile are scanned in shared memory, in double precision.
//
// A block works on `side` chunks of each of some signals of one channel, `blockDim.x * REPEAT` chunks in all, tile
// after tile along time. Samples go through shared memory, so that those of a warp are read and written side by side;
// chunks lie 17 samples apart there, and rows of states an odd number, so that no two threads meet in a bank. Constants
// are read by all threads at once, and used for every chunk that a thread holds.

#include "cuda_common.cuh"

#define REPEAT (sizeof(T) == 4 ? 2 : 1)
#define PIECE 16  // chunks that one thread scans

struct Room {  // of one block, in shared memory
    double *decay, *over_piece, *total, *state, *projected;
    Head* heads;
    T *inward, *outward, *near, *s, *halo, *stage;
};

__device__ inline Index aligned(Index bytes) { return (bytes + 15) / 16 * 16; }

__device__ inline T* packs(char*& memory, Index samples) {
    T* found = (T*)memory;
    memory += aligned(samples * sizeof(T));
    return found;
}

__device__ inline int spread(int i) { return i + i / CHUNK; }

__device__ inline int tile_of(const Problem& p) { return p.side * CHUNK + 2; }  // with two samples before it

__device__ inline Room room_of(const Problem& p, char* memory, int chunks) {
    int group = chunks / p.side, piece = p.side < PIECE ? p.side : PIECE;
    Room room;
    room.decay = (double*)memory;
    room.over_piece = room.decay + p.count;
    room.total = room.over_piece + p.count;
    room.state = room.total + chunks / piece * p.count;
    memory += aligned((2 + chunks / piece + group) * p.count * sizeof(double));
    room.heads = (Head*)memory;
    memory += aligned(group * sizeof(Head));
    room.inward = packs(memory, p.count * CHUNK);
    room.outward = packs(memory, p.count * CHUNK);
    room.near = packs(memory, CHUNK);
    room.s = packs(memory, p.count * (chunks + 1));
    room.halo = packs(memory, 2 * group);
    room.stage = packs(memory, group * (spread(tile_of(p)) + 1));
    room.projected = (double*)room.stage;  // when the last tile is done; five numbers are less than 17 samples
    return room;
}

// Replace what each chunk adds to the states by the states before it.
__device__ inline void scan(const Problem& p, const Room& room, int chunks) {
    int piece = p.side < PIECE ? p.side : PIECE, each = p.side / piece, stride = chunks + 1;
    for (int task = threadIdx.x; task < chunks / piece * p.count; task += blockDim.x) {
        int q = task % p.count, first = task / p.count * piece;
        double state = 0, decay = room.decay[q];
        for (int i = 0; i < piece; ++i) state = state * decay + (double)room.s[q * stride + first + i];
        room.total[task] = state;
    }
    __syncthreads();
    for (int task = threadIdx.x; task < chunks / p.side * p.count; task += blockDim.x) {
        int q = task % p.count, first = task / p.count * each;
        double state = room.state[task];
        for (int i = first; i < first + each; ++i) {
            double added = room.total[i * p.count + q];
            room.total[i * p.count + q] = state;
            state = state * room.over_piece[q] + added;
        }
        room.state[task] = state;
    }
    __syncthreads();
    for (int task = threadIdx.x; task < chunks / piece * p.count; task += blockDim.x) {
        int q = task % p.count, first = task / p.count * piece;
        double state = room.total[task], decay = room.decay[q];
        for (int i = 0; i < piece; ++i) {
            double added = (double)room.s[q * stride + first + i];
            room.s[q * stride + first + i] = (T)state;
            state = state * decay + added;
        }
    }
    __syncthreads();
}

// The products of one row with the chunks of a thread: what is read of the row serves all of them.
__device__ inline void dot(const T* row, const T (*x)[CHUNK], T* found) {
#pragma unroll
    for (int r = 0; r < REPEAT; ++r) found[r] = (T)0;
#pragma unroll
    for (int i = 0; i < CHUNK; i += PACKED) {
        Pack part = *(const Pack*)(row + i);
#pragma unroll
        for (int r = 0; r < REPEAT; ++r)
#pragma unroll
            for (int j = 0; j < PACKED; ++j) found[r] += part.of[j] * x[r][i + j];
    }
}

__device__ inline void accumulate(const T* row, const T* factor, T (*y)[CHUNK]) {
#pragma unroll
    for (int i = 0; i < CHUNK; i += PACKED) {
        Pack part = *(const Pack*)(row + i);
#pragma unroll
        for (int r = 0; r < REPEAT; ++r)
#pragma unroll
            for (int j = 0; j < PACKED; ++j) y[r][i + j] += part.of[j] * factor[r];
    }
}

template <bool BACKWARD, bool ENDS, bool INNER = false>
__device__ inline void compute(const Problem& p, char* memory) {
    const int chunks = blockDim.x * REPEAT, group = chunks / p.side, tile = tile_of(p), row = spread(tile) + 1;
    const int segments = ENDS ? p.segments - 1 : p.segments;  // nothing comes after the last
    const Room room = room_of(p, memory, chunks);
    const Index channel = blockIdx.x % p.channels, segment = blockIdx.x / p.channels % segments;
    const Index batch = blockIdx.x / p.channels / segments * group;
    const Index first = segment * p.segment, whole = p.padded / CHUNK;
    const Index end = first + p.segment < whole ? first + p.segment : whole;

    for (int i = threadIdx.x; i < p.count * CHUNK; i += blockDim.x) {
        room.inward[i] = p.inward[channel * p.own_inward + i];
        room.outward[i] = p.outward[channel * p.own_outward + i];
    }
    for (int i = threadIdx.x; i < CHUNK; i += blockDim.x) room.near[i] = p.near[channel * CHUNK + i];
    for (int q = threadIdx.x; q < p.count; q += blockDim.x) {
        room.decay[q] = p.decay[q];
        room.over_piece[q] = pow(p.decay[q], (double)(p.side < PIECE ? p.side : PIECE));
    }
    for (int g = threadIdx.x; g < group; g += blockDim.x) {
        Index signal = (batch + g) * p.channels + channel;
        if (!BACKWARD && batch + g < p.batch) room.heads[g] = head_of(p, p.x + signal * p.n);
        for (int q = 0; q < p.count; ++q) {
            bool goes_on = !ENDS && p.segments > 1 && batch + g < p.batch;
            room.state[g * p.count + q] = goes_on ? p.states[place(p, signal, segment, q)] : 0.0;
        }
        room.halo[2 * g] = room.halo[2 * g + 1] = (T)0;
    }
    double sums[REPEAT][5], product = 0;
    for (int r = 0; r < REPEAT; ++r)
        for (int j = 0; j < 5; ++j) sums[r][j] = 0;

    for (Index begin = first; begin < end; begin += p.side) {
        __syncthreads();  // the tile before is written, the first time the constants are there
        for (int i = threadIdx.x; i < group * tile; i += blockDim.x) {
            int g = i / tile, at = i % tile;
            Index position = begin * CHUNK + at - 2, k = BACKWARD ? p.padded - 1 - position : position;
            bool is_there = batch + g < p.batch && k >= 0 && k < p.n;
            room.stage[g * row + spread(at)] = is_there ? read(p.x[((batch + g) * p.channels + channel) * p.n + k]) : (T)0;
        }
        __syncthreads();
        T x[REPEAT][CHUNK];
#pragma unroll
        for (int r = 0; r < REPEAT; ++r) {
            int chunk = r * blockDim.x + threadIdx.x, g = chunk / p.side;
            const T* stage = room.stage + g * row;
            int at = chunk % p.side * CHUNK;
            Index k = begin * CHUNK + at;
            T earlier = stage[spread(at)], before = stage[spread(at + 1)];
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                T now = stage[spread(at + i + 2)];
                bool is_there = batch + g < p.batch && k + i < p.n;
                x[r][i] = BACKWARD ? now : is_there ? difference(p, room.heads[g], k + i, now, before, earlier) : (T)0;
                earlier = before;
                before = now;
            }
        }
        for (int q = 0; q < p.count; ++q) {
            T added[REPEAT];
            dot(room.inward + q * CHUNK, x, added);
#pragma unroll
            for (int r = 0; r < REPEAT; ++r) room.s[q * (chunks + 1) + r * blockDim.x + threadIdx.x] = added[r];
        }
        __syncthreads();
        if (p.count) scan(p, room, chunks);
        if (ENDS) continue;

        T y[REPEAT][CHUNK], near[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) near[i] = room.near[i];
#pragma unroll
        for (int r = 0; r < REPEAT; ++r)
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                y[r][i] = (T)0;
#pragma unroll
                for (int j = 0; j <= i; ++j) y[r][i] += near[i - j] * x[r][j];
            }
        for (int q = 0; q < p.count; ++q) {
            T before[REPEAT];
#pragma unroll
            for (int r = 0; r < REPEAT; ++r) before[r] = room.s[q * (chunks + 1) + r * blockDim.x + threadIdx.x];
            accumulate(room.outward + q * CHUNK, before, y);
        }
#pragma unroll
        for (int r = 0; r < REPEAT; ++r) {
            int chunk = r * blockDim.x + threadIdx.x, g = chunk / p.side, at = chunk % p.side * CHUNK;
            T* stage = room.stage + g * row;
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) stage[spread(at + i + 2)] = y[r][i];
            if (BACKWARD && at == 0) {  // the last two of the tile before
                stage[spread(0)] = room.halo[2 * g];
                stage[spread(1)] = room.halo[2 * g + 1];
            }
            if (BACKWARD && batch + g < p.batch) {
                Index here = begin + at / CHUNK, k = p.padded - 1 - here * CHUNK;
                Index signal = (batch + g) * p.channels + channel;
#pragma unroll
                for (int i = 0; i < CHUNK; ++i) {
                    bool is_there = k - i >= 0 && k - i < p.n;
                    if (is_summed(p) && is_there) {
                        sums[r][0] += (double)y[r][i];
                        sums[r][1] += (double)(k - i) * (double)y[r][i];
                    }
#pragma unroll
                    for (int j = 0; j < 3; ++j)
                        if (j < p.terms && is_there)
                            sums[r][2 + j] += (double)x[r][i] * (double)p.columns[(j * p.channels + channel) * p.n + k - i];
                    if (here == first && i < 2)
                        p.records[(signal * p.segments + segment) * RECORD + FIRST + i] = is_there ? (double)y[r][i] : 0.0;
                    if (here + 1 == end && CHUNK - 1 - i < HEAD)
                        p.records[(signal * p.segments + segment) * RECORD + CHUNK - 1 - i] = is_there ? (double)y[r][i] : 0.0;
                }
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < group * (tile - 2); i += blockDim.x) {
            int g = i / (tile - 2), at = i % (tile - 2);
            Index position = begin * CHUNK + at, k = BACKWARD ? p.padded - 1 - position : position;
            if (batch + g >= p.batch || k < 0 || k >= p.n) continue;
            const T* stage = room.stage + g * row;
            T now = stage[spread(at + 2)];
            T found = BACKWARD ? difference_back(p.m, now, stage[spread(at + 1)], stage[spread(at)])
                               : now + boundary(p, room.heads[g], channel, k);
            Index there = ((batch + g) * p.channels + channel) * p.n + k;
            if (INNER)
                product += (double)found * (double)read(p.against[there]);
            else
                write(p.y[there], found);
        }
        if (BACKWARD && begin + p.side < end) {
            for (int g = threadIdx.x; g < group; g += blockDim.x) {
                room.halo[2 * g] = room.stage[g * row + spread(tile - 2)];
                room.halo[2 * g + 1] = room.stage[g * row + spread(tile - 1)];
            }
        }
    }
    if (INNER) p.products[(Index)blockIdx.x * blockDim.x + threadIdx.x] = product;
    if (ENDS) {
        for (int task = threadIdx.x; task < group * p.count; task += blockDim.x) {
            Index signal = (batch + task / p.count) * p.channels + channel;
            if (batch + task / p.count < p.batch) p.states[place(p, signal, segment, task % p.count)] = room.state[task];
        }
    }
    if (BACKWARD && !ENDS) {
        __syncthreads();  // the last tile is written
        for (int r = 0; r < REPEAT; ++r)
            for (int j = 0; j < 5; ++j) room.projected[j * chunks + r * blockDim.x + threadIdx.x] = sums[r][j];
        __syncthreads();
        for (int task = threadIdx.x; task < 5 * group; task += blockDim.x) {
            int j = task / group, g = task % group;
            double found = 0;
            for (int i = 0; i < p.side; ++i) found += room.projected[j * chunks + g * p.side + i];
            Index signal = (batch + g) * p.channels + channel;
            if (batch + g < p.batch) p.records[(signal * p.segments + segment) * RECORD + HEAD + j] = found;
        }
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
