// grad_reduce: adds the partial gradients, in ascending order, and takes the squares for the global norm on the way. Runs
// when the batch was split or a library made some of the gradient, else linear_backward writes gradient and squares; and
// without runs for the squares of a gradient that other kernels wrote.
//
// Launch: grid (blocks), any block; a block owns per_block adjacent elements. Squares are added in f64, fixed tree. Where there are
// many partial gradients, 8 threads share those of a vector on a GPU, each a run of adjacent ones: eight at a time are on their way,
// so that 64 are one trip to L2 instead of eight. Elements are multiples of 16, so whole warps do.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/optim.h"

namespace {

[[maybe_unused]] constexpr int BATCH = 8;  // partial gradients on their way at once

}  // namespace

#ifdef FX_GPU
// Without bounds the compiler reckons with 1,024 threads a block and saves registers: one load in flight, then its sum, then the next.
extern "C" __global__ void __launch_bounds__(512, 2) grad_reduce(const __grid_constant__ grad_reduce_args a);
#endif

FX_KERNEL_ANYBLOCK(grad_reduce) {
    using namespace fx;
    int64_t begin = (int64_t)blockIdx.x * a.per_block;
    int64_t left = a.n - begin;
    int vectors = (int)(left < a.per_block ? left : a.per_block) / LANES;
    int r = 0;  // the run that this thread is in: its elements ascend
#ifdef FX_GPU
    const int bits = a.share == 8 ? 3 : 0, share = 1 << bits;
#else
    const int bits = 0, share = 1;
#endif
    double s = block_sum_f64(vectors * share, [&](int i) {
        const int mine = i & (share - 1);
        int64_t at = begin + (int64_t)(i >> bits) * LANES;
        const bool writes = mine == 0;
        if (a.n_runs == 0) return writes ? sum_of_squares(load_lanes(a.done + at)) : 0.0;
        while (at >= a.runs[r].end) ++r;
        const grad_run run = a.runs[r];
        const int each = ceil_div(run.splits, share), from = mine * each, to = min(from + each, run.splits);
        const float *part = a.part + run.part + (at - run.begin);
#ifdef FX_GPU
        // Batches of eight, the last one too: left to the compiler, what is left over of a loop is one trip after the other.
        lanes g = splat(0.0f);
        for (int z = from; z < to; z += BATCH) {
            const float *p = part + (int64_t)z * run.stride;
            lanes v[BATCH];
            FX_UNROLL
            for (int k = 0; k < BATCH; ++k, p += run.stride) v[k] = z + k < to ? load_lanes(p) : splat(0.0f);
            FX_UNROLL
            for (int k = 0; k < BATCH; ++k) g = g + v[k];
        }
        for (int lane = 1; lane < share; lane <<= 1) {
            const float4 o =
                make_float4(__shfl_xor_sync(0xffffffffu, g.v.x, lane), __shfl_xor_sync(0xffffffffu, g.v.y, lane),
                            __shfl_xor_sync(0xffffffffu, g.v.z, lane), __shfl_xor_sync(0xffffffffu, g.v.w, lane));
            g = g + lanes{o};
        }
#else
        lanes g = to > 0 ? load_lanes(part) : splat(0.0f);
        for (int z = 1; z < to; ++z) g = g + load_lanes(part + (int64_t)z * run.stride);
#endif
        if (!writes) return 0.0;
        if (run.splits == 0) return sum_of_squares(load_lanes(a.done + at));
        store_lanes(a.grad + at, g);
        return sum_of_squares(g);
    });
    FX_FOR(i, 1) a.norm_part[blockIdx.x] = s;
}
