// Tiny kernels for tests of the runtime itself. No algorithm of the trainer is here.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "abi/types.h"
#include "abi/testing.h"

FX_KERNEL(empty) { (void)a; }

// x += value
FX_KERNEL(add_scalar) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < a.n) a.x[i] += a.value;
}

// One thread. Takes another while each time: in front of graph nodes it moves them against those they have no edge to.
FX_KERNEL(delay) {
    uint32_t k = a.count[0];
    a.count[0] = k + 1;
    uint32_t h = (k ^ a.seed) * 0x9e3779b9u;  // the finalizer of MurmurHash3: neighbours in k are far apart in h
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    unsigned long long ns = (h ^ (h >> 16)) % (a.most_ns + 1u), start = fx::globaltimer();
    while (fx::globaltimer() - start < ns) {}
}

// One block, any size: the fixed-order reduction of lib/reduce.h.
FX_KERNEL_ANYBLOCK(sum) {
    float s = fx::block_sum(a.n, [&](int i) { return a.x[i]; });
    FX_FOR(i, 1) a.sum[0] = s;
}

// A barrier between threads, dynamic shared memory of cols floats.
FX_KERNEL(reverse_rows) {
    FX_DYNAMIC_SHARED(float, row);
    int i = (int)threadIdx.x, base = (int)blockIdx.x * a.cols;
    row[i] = a.x[base + i];
    __syncthreads();
    a.y[base + i] = row[a.cols - 1 - i];
}

FX_KERNEL(warp_sum) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float v = i < a.n ? a.x[i] : 0.0f;
    for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lane);
    if ((threadIdx.x & 31) == 0 && i < a.n) a.y[i / 32] = v;
}
