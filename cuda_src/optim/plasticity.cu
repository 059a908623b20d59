// Pruning, and shrink-and-perturb (Ash & Adams 2020).
//
//   prune_gradient   in the step, between adam_grad and the clip: g *= mask, and its squares anew      grid (blocks)
//   prune_apply      between epochs: a buffer is zeroed where the mask is 0                      grid (ceil(n/per_block))
//   shrink_perturb   between epochs: theta = lambda theta + sigma xi on one segment               grid (ceil(rows*N/per_block))
//
// A parameter, its moments and its target that are 0 and whose gradient is 0 stay 0 through Adam, decay, Polyak and the spectral
// projection, exactly: so the gradient alone needs the mask at every step. A gradient that is not finite stays so (NaN * 0).
// Noise: Philox(seed, rng_step of the next step, RNG_NOISE, element + 2^31): the upper half of the elements is not drawn by
// kernels of the step. prune_gradient: 12 bytes an element under the mask, 8 beyond; returns at once while nothing is pruned.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/philox.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/plasticity.h"

FX_KERNEL_ANYBLOCK(prune_gradient) {
    using namespace fx;
    const uint32_t pruned = *a.pruned;
    FX_FOR(only, blockIdx.x == 0 ? 1 : 0) *a.sparsity = (float)pruned / (float)a.prunable;
    if (pruned == 0) return;
    const int64_t begin = (int64_t)blockIdx.x * a.per_block, left = a.n - begin;
    const int vectors = (int)(left < 0 ? 0 : left < a.per_block ? left : a.per_block) / LANES;
    const double squares = block_sum_f64(vectors, [&](int q) {
        const int64_t at = begin + (int64_t)q * LANES;
        lanes g = load_lanes(a.grad + at);
        if (at < a.masked) {
            g = g * load_lanes(a.mask + at);
            store_lanes(a.grad + at, g);
        }
        return sum_of_squares(g);
    });
    const int first = (int)blockIdx.x;
    FX_FOR(i, (a.parts - first - 1) / a.blocks + 1) a.norm_part[first + i * a.blocks] = i == 0 ? squares : 0.0;
}

FX_KERNEL_ANYBLOCK(prune_apply) {
    using namespace fx;
    const int64_t begin = (int64_t)blockIdx.x * a.per_block, left = a.n - begin;
    FX_FOR(i, left < a.per_block ? left : a.per_block) {
        if (a.mask[begin + i] == 0.0f) a.buffer[begin + i] = 0.0f;
    }
}

FX_KERNEL_ANYBLOCK(shrink_perturb) {
    const int64_t begin = (int64_t)blockIdx.x * a.per_block, left = (int64_t)a.rows * a.N - begin;
    const uint64_t seed = a.control->seed, rng_step = a.state->rng_step;
    FX_FOR(j, left < a.per_block ? left : a.per_block) {
        const int64_t i = begin + j, at = i / a.N * a.Np + i % a.N;
        const uint32_t element = (uint32_t)(a.first + at) | 0x80000000u;
        const uint4 random = fx::philox(seed, rng_step, RNG_NOISE, element);
        const float noise = a.sigma * fx::normal01(random.x, random.y) * (a.mask ? a.mask[at] : 1.0f);
        a.theta[at] = fmaf(a.shrink, a.theta[at], noise);
    }
}
