// The average of gradients with what is remembered of those before, for many parameters in one launch: every row is
// read once, and written once where it changes. A thread has the gradient in a register from the average to the last
// row, so that the result may lie where the gradient does.

typedef SAMPLE T;
typedef long long Index;

#define TENSORS 16  // of one launch
#define MOST 64     // rows
#define EACH 4      // values of a thread

struct Mix {
    const T* grads[TENSORS];
    T* rows[TENSORS];  // [count, size], one behind another
    T* averages[TENSORS];
    Index sizes[TENSORS];
    Index ends[TENSORS];  // blocks of the tensors up to each one
    double first;         // weight of the gradient
    double weights[MOST], gains[MOST];
    int count;  // rows
};

extern "C" __global__ void __launch_bounds__(256) mix(const Mix p) {
    int at = 0;
    while (p.ends[at] <= blockIdx.x) ++at;
    const Index size = p.sizes[at], begin = (blockIdx.x - (at ? p.ends[at - 1] : 0)) * blockDim.x * EACH;
    for (int i = 0; i < EACH; ++i) {
        Index here = begin + (Index)i * blockDim.x + threadIdx.x;
        if (here >= size) return;
        T grad = p.grads[at][here], average = (T)p.first * grad;
        for (int row = 0; row < p.count; ++row) {
            T weight = (T)p.weights[row], gain = (T)p.gains[row];
            T* held = p.rows[at] + row * size + here;
            T before = weight != (T)0 || (gain != (T)0 && gain != (T)1) ? *held : (T)0;
            if (weight != (T)0) average += weight * before;  // a row that weighs nothing may hold what is not finite
            if (gain != (T)0) *held = gain == (T)1 ? grad : before + gain * (grad - before);
        }
        p.averages[at][here] = average;
    }
}
