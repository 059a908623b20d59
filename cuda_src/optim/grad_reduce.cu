// grad_reduce: adds the partial gradients, in ascending order, and takes the squares for the global norm on the way. Runs
// when the batch was split or a library made some of the gradient, else linear_backward writes gradient and squares; and
// without runs for the squares of a gradient that other kernels wrote.
//
// Launch: grid (blocks), any block; a block owns per_block adjacent elements. Squares are added in f64, fixed tree.
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
    double s = block_sum_f64(vectors, [&](int q) {
        int64_t at = begin + (int64_t)q * LANES;
        if (a.n_runs == 0) return sum_of_squares(load_lanes(a.done + at));
        while (at >= a.runs[r].end) ++r;
        const grad_run run = a.runs[r];
        if (run.splits == 0) return sum_of_squares(load_lanes(a.done + at));
        const float *part = a.part + run.part + (at - run.begin);
        lanes g = load_lanes(part);
#pragma unroll 8
        for (int z = 1; z < run.splits; ++z) g = g + load_lanes(part + z * run.stride);
        store_lanes(a.grad + at, g);
        return sum_of_squares(g);
    });
    FX_FOR(i, 1) a.norm_part[blockIdx.x] = s;
}
