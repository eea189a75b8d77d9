// What the kernels of the causal product share: the problem, the frame around the product, and two small passes.
//
// A signal is cut into chunks of CHUNK samples at positions 0, 1, ... of the direction: forward, position p is time p;
// backward it is time padded - 1 - p, so that the same code computes the transpose. With X a chunk and S the states
// before it,  Y = X near + S outward,  S' = decay * S + X inward,  and near is the Toeplitz matrix of the first weights.
// Long signals may be cut into segments of whole chunks: `ends` and `chain` find the states before each of them, and
// what crosses their borders on the way back through the differences is added by `finish`.
//
// Nothing is added up by atomics: every sum has one order, and results do not depend on what else runs.
// Each source begins with this file. Who compiles it defines SAMPLE, what is computed in, and STORED where the data are
// of another type: half precision becomes float when it is read, and is rounded once when it is written.

#ifndef SHARED  // on a device; a host that compiles this has its own
#define SHARED(type, name) extern __shared__ __align__(16) type name[]  // the memory of a block's threads

__device__ inline float of_half(unsigned short bits) {
    float found;
    asm("cvt.f32.f16 %0, %1;" : "=f"(found) : "h"(bits));
    return found;
}

__device__ inline unsigned short to_half(float x) {
    unsigned short found;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(found) : "f"(x));
    return found;
}
#endif

#ifndef STORED
#define STORED SAMPLE
#endif

struct Half {  // five bits of exponent
    unsigned short bits;
};

struct BFloat {  // eight, as float
    unsigned short bits;
};

typedef SAMPLE T;
typedef STORED S;
typedef long long Index;

__device__ inline float read(float x) { return x; }
__device__ inline double read(double x) { return x; }
__device__ inline float read(Half x) { return of_half(x.bits); }
__device__ inline float read(BFloat x) { return __uint_as_float((unsigned)x.bits << 16); }

__device__ inline void write(float& to, float x) { to = x; }
__device__ inline void write(double& to, double x) { to = x; }
__device__ inline void write(Half& to, float x) { to.bits = to_half(x); }

__device__ inline void write(BFloat& to, float x) {  // to the nearest, of two the even one
    unsigned bits = __float_as_uint(x);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to.bits = is_nan ? 0x7fff : (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#define CHUNK 16
#define PACKED (16 / (int)sizeof(T))  // samples of the widest load
#define HEAD 6                        // samples of the transposed product that the differences at a border need
#define FIRST (HEAD + 5)              // after the sum of the samples, that of time times sample, and three projections
#define RECORD (FIRST + 2)            // with the first two samples of a segment, whose differences need another's

struct alignas(16) Pack {
    T of[PACKED];
};

// One call. Data are [batch, channels, n, width], contiguous; `width` is 1 where there are several channels.
struct Problem {
    const S* x;
    S* y;
    const T* inward;       // [channels or 1, states, CHUNK]
    const T* outward;      // the same
    const T* near;         // the first weights, [channels, CHUNK], or all of them, [channels, n]
    const double* decay;   // [states], from chunk to chunk
    const T* columns;      // [terms, channels, n]
    double* states;        // of each segment, see `place`
    double* records;       // [signals, segments, RECORD]
    const S* against;      // what the result is multiplied by, where it is not written
    double* products;      // a sum for each thread of each block
    Index batch, channels, n, width;
    Index padded;          // n, rounded up to whole chunks
    Index segment;         // chunks of a segment
    Index own_inward, own_outward;  // distance between the matrices of two channels, 0 where all share one
    int segments, side;    // `side`: chunks of one signal that a block works on at once, a power of two
    int count;             // states
    int m, subtract, taylor, start, terms;  // see `stencil.py`; start is -1 where no column acts on the differences
};

struct Head {
    double lead;  // dt x'(0), where it is subtracted
    T base;       // x(0)
    T second;     // the second entry of the second differences
    T values[3];  // what the columns multiply
};

__device__ inline double slope_weight(int k, Index n) {
    if (n >= 4) return k == 0 ? -11.0 / 6 : k == 1 ? 3.0 : k == 2 ? -1.5 : 1.0 / 3;
    if (n == 3) return k == 0 ? -1.5 : k == 1 ? 2.0 : k == 2 ? -0.5 : 0.0;
    if (n == 2) return k == 0 ? -1.0 : k == 1 ? 1.0 : 0.0;
    return 0.0;
}

__device__ inline bool has_slope(const Problem& p) { return p.subtract && p.taylor == 2; }

// Whether the adjoint needs sums over all samples.
__device__ inline bool is_summed(const Problem& p) { return p.subtract && (p.m == 0 || has_slope(p)); }

// One sample of the m-th difference of x, less its Taylor polynomial.
__device__ inline T difference(const Problem& p, const Head& head, Index k, T now, T before, T earlier) {
    if (p.m == 0) {
        if (!p.subtract) return now;
        T u = now - head.base;
        return has_slope(p) ? (T)((double)u - (double)k * head.lead) : u;
    }
    if (k == 0) return p.subtract ? (T)0 : now;
    if (p.m == 1) return has_slope(p) ? (T)((double)(now - before) - head.lead) : now - before;
    if (k == 1) return head.second;
    return (now - before) - (before - earlier);
}

__device__ inline Head head_of(const Problem& p, const S* x) {
    T first[4];
    for (int k = 0; k < 4; ++k) first[k] = k < p.n ? read(x[k * p.width]) : (T)0;
    double slope = 0;
    for (int k = 0; k < 4; ++k) slope += slope_weight(k, p.n) * (double)first[k];
    Head head;
    head.lead = has_slope(p) ? slope : 0.0;
    head.base = first[0];
    head.second = (first[1] - first[0]) - (p.subtract ? (T)0 : first[0]);
    if (has_slope(p)) {  // x'(0) is subtracted where no digits are lost
        double third = (double)((first[2] - first[1]) - (first[1] - first[0]));
        double fourth = (double)((first[3] - first[2]) - (first[2] - first[1]));
        head.second = (T)(p.n == 2 ? 0.0 : p.n == 3 ? third / 2 : third * (5.0 / 6) - fourth / 3);
    }
    int at = 0;
    for (int j = 0; j < 3; ++j) head.values[j] = (T)0;
    if (p.start >= 0) {
        int k = p.start;
        head.values[at++] = difference(p, head, k, first[k], k > 0 ? first[k - 1] : (T)0, k > 1 ? first[k - 2] : (T)0);
    }
    if (p.terms > at) head.values[at] = first[0];
    if (p.terms > at + 1) head.values[at + 1] = (T)slope;
    return head;
}

__device__ inline T boundary(const Problem& p, const Head& head, Index channel, Index k) {
    T found = (T)0;
    for (int j = 0; j < p.terms; ++j) found += p.columns[(j * p.channels + channel) * p.n + k] * head.values[j];
    return found;
}

// The transpose of the plain m-th difference: `later` and `last` are one and two samples further on in time.
__device__ inline T difference_back(int m, T now, T later, T last) {
    return m == 0 ? now : m == 1 ? now - later : (now - later) - (later - last);
}

// Write the first samples of the adjoint, with the gradients of what is subtracted and of what the columns multiply.
// `record` holds the product's first HEAD samples, 0 where there are none, and the sums over all of them.
__device__ inline void finish_head(const Problem& p, const double* record, S* out) {
    double e[HEAD], total = record[HEAD], moment = record[HEAD + 1];
    const double* projected = record + HEAD + 2;
    int at = p.start >= 0 ? 1 : 0;
    for (int k = 0; k < HEAD; ++k) e[k] = record[k];
    if (at) {
        e[p.start] += projected[0];
        total += projected[0];
        moment += p.start * projected[0];
    }
    double base = !p.subtract ? 0.0 : p.m == 0 ? total : p.m == 1 ? e[0] : e[0] - e[1];
    double lead = p.terms > at + 1 ? projected[at + 1] : 0.0;
    if (has_slope(p)) lead -= p.m == 0 ? moment : p.m == 1 ? total - e[0] : e[1];
    for (int k = 0; k < 4 && k < p.n; ++k) {
        double found = p.m == 0 ? e[k] : p.m == 1 ? e[k] - e[k + 1] : (e[k] - e[k + 1]) - (e[k + 1] - e[k + 2]);
        if (k == 0) found += (p.terms > at ? projected[at] : 0.0) - base;
        write(out[k * p.width], (T)(found + lead * slope_weight(k, p.n)));
    }
}

__device__ inline Index origin(const Problem& p, Index signal) {
    return signal / p.width * p.n * p.width + signal % p.width;
}

// Where the state of a signal at the beginning of a segment lies: in the order of the threads that read it.
__device__ inline Index place(const Problem& p, Index signal, Index segment, int q) {
    if (p.width == 1) return (signal * p.segments + segment) * p.count + q;
    return (segment * p.count + q) * (p.batch * p.width) + signal;
}

// From what each segment adds to the states to the states before it; a thread for each state of a signal.
extern "C" __global__ void chain(const Problem p) {
    Index signals = p.batch * p.channels * p.width, at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= signals * p.count) return;
    Index signal = p.width == 1 ? at / p.count : at % signals;
    int q = (int)(p.width == 1 ? at % p.count : at / signals);
    double decay = pow(p.decay[q], (double)p.segment), state = 0;
    for (int segment = 0; segment < p.segments; ++segment) {
        Index here = place(p, signal, segment, q);
        double added = segment + 1 < p.segments ? p.states[here] : 0.0;
        p.states[here] = state;
        state = state * decay + added;
    }
}

// After the transpose of all segments: what crosses their borders, and the first samples. `side` threads for a signal;
// shared memory holds five numbers for each thread.
extern "C" __global__ void finish(const Problem p) {
    SHARED(double, sums);
    Index signals = p.batch * p.channels * p.width;
    Index signal = ((Index)blockIdx.x * blockDim.x + threadIdx.x) / p.side;
    int lane = threadIdx.x % p.side;
    double found[5] = {0, 0, 0, 0, 0};
    if (signal < signals) {
        const double* records = p.records + signal * p.segments * RECORD;
        S* out = p.y + origin(p, signal);
        for (int segment = lane; segment < p.segments; segment += p.side) {
            for (int j = 0; j < 5; ++j) found[j] += records[segment * RECORD + HEAD + j];
            if (segment > 0 && p.m > 0) {
                Index time = p.padded - 1 - segment * p.segment * CHUNK;
                double later = records[(segment - 1) * RECORD], last = records[(segment - 1) * RECORD + 1];
                double now = records[segment * RECORD + FIRST], before = records[segment * RECORD + FIRST + 1];
                S* here = out + time * p.width;
                write(*here, (T)(p.m == 1 ? now - later : (now - later) - (later - last)));
                if (p.m == 2) write(here[-p.width], (T)((before - now) - (now - later)));
            }
        }
    }
    for (int j = 0; j < 5; ++j) sums[j * blockDim.x + threadIdx.x] = found[j];
    __syncthreads();
    if (signal >= signals || lane > 0) return;
    double record[RECORD];
    for (int k = 0; k < HEAD; ++k) record[k] = p.records[((signal + 1) * p.segments - 1) * RECORD + k];
    for (int j = 0; j < 5; ++j) {
        record[HEAD + j] = 0;
        for (int i = 0; i < p.side; ++i) record[HEAD + j] += sums[j * blockDim.x + threadIdx.x + i];
    }
    finish_head(p, record, p.y + origin(p, signal));
}
