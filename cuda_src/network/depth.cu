// depth_masks: which rows pass through which residual blocks in this step (stochastic depth, Huang et al. 2016): block l of L, from 0,
// is left out of a row with chance p_l = drop (l + 1)/L, the paper's linear decay, and what is kept counts 1/(1 - p_l).
//
// Launch: grid (1), any block. Beside per_sample, whose draw takes longer at the sizes of a batch: four rows a Philox block of four words,
// counter (rng_step, RNG_DEPTH, l ceil(R/4) + r/4). The count of what is kept is a sum of integers.
#include "lib/kernel.h"
#include "lib/philox.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/residual.h"

FX_KERNEL_ANYBLOCK(depth_masks) {
    using namespace fx;
    const step_block s = *a.step;
    const int quads = ceil_div(a.R, 4);
    const double kept = block_sum_f64(a.L * quads, [&](int i) {
        const int l = i / quads, first = i % quads * 4;
        const float survival = 1.0f - a.drop * (float)(l + 1) / (float)a.L;
        const uint4 random = philox(s.seed, s.rng_step, RNG_DEPTH, (uint32_t)i);
        const uint32_t words[4] = {random.x, random.y, random.z, random.w};
        double count = 0.0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (first + j >= a.R) break;
            const bool keeps = uniform01(words[j]) < survival;
            a.scale[(size_t)l * a.R + first + j] = keeps ? 1.0f / survival : 0.0f;
            count += keeps ? 1.0 : 0.0;
        }
        return count;
    });
    FX_FOR(only, 1) *a.kept = (float)(kept / ((double)a.L * a.R));
}
