// popart: this step's sigma_G, the returns in its units, and linear heads that go on saying the same in raw units
// (van Hasselt 2016; no mean shift). docs/step/popart.md has the equations.
//
// Launch: grid (any,), any block. Every block decides sigma by itself, from the slot that nobody writes in this step, so one
// launch does it all; block 0 keeps it. 8 B bytes, and 32 bytes a corrected parameter.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/popart.h"

FX_KERNEL_ANYBLOCK(popart) {
    const step_block *step = a.step;
    const bool odd = step->step & 1u;
    const double unit = 1.0 / (double)step->reward_scale;  // sigma that changes nothing
    const double kept = odd ? a.state->sigma_odd : a.state->sigma_even, before = kept > 0.0 ? kept : unit;
    const double deviation = sqrt(a.returns->m2 / (double)a.returns->count);
    double sigma = before;
    // comparisons that a NaN fails: what is no deviation moves nothing
    if ((int64_t)a.returns->count >= a.min_count && deviation > 0.0 && deviation < (double)INFINITY) {
        const double most = 1.0 + (double)a.max_change;
        sigma = deviation > before * most ? before * most : deviation < before / most ? before / most : deviation;
    }
    const int blocks = (int)gridDim.x, b = (int)blockIdx.x;
    const float factor = sigma == unit ? 1.0f : (float)(unit / sigma);
    const int rows = fx::ceil_div(a.B, blocks), first = b * rows;
    FX_FOR(i, min(rows, a.B - first)) a.normalized[first + i] = a.ret[first + i] * factor;

    if (sigma != before) {
        const float rho = (float)(before / sigma), rho2 = (float)(before / sigma * (before / sigma));
        for (int r = 0; r < a.R; ++r) {
            const int length = a.ranges[2 * r + 1], each = fx::ceil_div(length, blocks);
            const int begin = a.ranges[2 * r] + b * each;
            FX_FOR(i, min(each, length - b * each)) {
                const int k = begin + i;
                // loaded before anything is stored: one trip to memory, not four
                const float theta = a.theta[k], target = a.target[k], m = a.m[k], v = a.v[k];
                a.theta[k] = theta * rho;
                a.target[k] = target * rho;
                a.m[k] = m * rho;
                a.v[k] = v * rho2;
            }
        }
    }
    if (b > 0) return;
    FX_FOR(one, 1) {
        if (odd) a.state->sigma_even = sigma;
        else a.state->sigma_odd = sigma;
        a.metrics[0] = (float)sigma;
        a.metrics[1] = (float)(sigma / before);
    }
}
