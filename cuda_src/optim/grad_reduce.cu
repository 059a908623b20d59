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
        lanes g = splat(0.0f);
        if (from < to) {
            g = load_lanes(part + from * run.stride);
#pragma unroll 8
            for (int z = from + 1; z < to; ++z) g = g + load_lanes(part + z * run.stride);
        }
#ifdef FX_GPU
        for (int lane = 1; lane < share; lane <<= 1) {
            const float4 o =
                make_float4(__shfl_xor_sync(0xffffffffu, g.v.x, lane), __shfl_xor_sync(0xffffffffu, g.v.y, lane),
                            __shfl_xor_sync(0xffffffffu, g.v.z, lane), __shfl_xor_sync(0xffffffffu, g.v.w, lane));
            g = g + lanes{o};
        }
#endif
        if (!writes) return 0.0;
        if (run.splits == 0) return sum_of_squares(load_lanes(a.done + at));
        store_lanes(a.grad + at, g);
        return sum_of_squares(g);
    });
    FX_FOR(i, 1) a.norm_part[blockIdx.x] = s;
}
