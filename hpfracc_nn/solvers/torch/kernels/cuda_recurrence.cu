// What a block of a solver's steps has of the far past, by exponentials: all of them, of all states, in one launch.
// A thread has one number of the state; neighbouring threads read neighbouring numbers.

typedef SAMPLE T;
typedef long long Index;

#define EACH 8  // exponentials that are in registers at a time

struct Past {
    const T* values;   // [equations, pushed, width], the first of those that are new
    const T* into;     // [equations, states, fresh]
    const T* decay;    // [states]
    const T* out_of;   // [equations, rows, states]
    T* states;         // [equations, states, width]
    T* out;            // [equations, rows, width], added to
    Index width, pushed;
    int equations, count, fresh, rows;
};

extern "C" __global__ void __launch_bounds__(128) far(const Past p) {
    const Index blocks = (p.width + blockDim.x - 1) / blockDim.x;
    const Index at = blockIdx.x % blocks * blockDim.x + threadIdx.x, equation = blockIdx.x / blocks;
    if (at >= p.width) return;
    const T* values = p.values + equation * p.pushed * p.width + at;
    const T* into = p.into + equation * p.count * p.fresh;
    const T* out_of = p.out_of + equation * p.rows * p.count;
    T* states = p.states + equation * p.count * p.width + at;
    T* out = p.out + equation * p.rows * p.width + at;
    for (int first = 0; first < p.count; first += EACH) {
        const int last = p.count - first < EACH ? p.count - first : EACH;
        T state[EACH];
#pragma unroll
        for (int q = 0; q < EACH; ++q) state[q] = (T)0;
        for (int i = 0; i < p.fresh; ++i) {
            T value = values[i * p.width];
#pragma unroll
            for (int q = 0; q < EACH; ++q)
                if (q < last) state[q] += into[(first + q) * (Index)p.fresh + i] * value;
        }
#pragma unroll
        for (int q = 0; q < EACH; ++q)
            if (q < last) {
                state[q] += p.decay[first + q] * states[(first + q) * p.width];
                states[(first + q) * p.width] = state[q];
            }
        for (int row = 0; row < p.rows; ++row) {
            T found = (T)0;
#pragma unroll
            for (int q = 0; q < EACH; ++q)
                if (q < last) found += out_of[(Index)row * p.count + first + q] * state[q];
            out[row * p.width] += found;
        }
    }
}
