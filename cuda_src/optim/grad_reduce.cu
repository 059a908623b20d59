// grad_reduce: adds the partial gradients of the batch's splits, in ascending order, and takes the squares for the
// global norm on the way. Runs when the batch is split, else linear_backward writes gradient and squares itself; and
// without `grad` for the squares of a gradient that other kernels wrote.
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
    double s = block_sum_f64(vectors, [&](int q) {
        int64_t at = begin + (int64_t)q * LANES;
        lanes g = load_lanes(a.part + at);
        for (int z = 1; z < a.splits; ++z) g = g + load_lanes(a.part + z * a.n + at);
        if (a.grad) store_lanes(a.grad + at, g);
        return sum_of_squares(g);
    });
    FX_FOR(i, 1) a.norm_part[blockIdx.x] = s;
}
