// Adds an auxiliary loss's gradient to dlogits, within its share of the gradient budget (loss/head_gradient.h has that of the
// main loss): the norm over all rows is at most share * G.
//
// Launch: grid (at most B,), any block; a block takes every gridDim-th row, and adds up the B squared norms itself: cheaper
// than one more node.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/aux.h"

FX_KERNEL_ANYBLOCK(aux_blend) {
    using namespace fx;
    const float limit = a.share * a.step->grad_budget;
    float scale = 1.0f;
    if (limit > 0.0f) {
        const float norm = sqrtf(block_sum(a.B, [&](int r) { return a.rows[r * AUX_COLUMNS + AUX_NORM2]; }));
        if (norm > limit) scale = limit / norm;
    }
    for (int row = (int)blockIdx.x; row < a.B; row += (int)gridDim.x) {
        FX_FOR(i, a.Np / LANES) {
            const int64_t at = (int64_t)row * a.Np + (int64_t)i * LANES;
            store_lanes(a.dlogits + at, fma(splat(scale), load_lanes(a.part + at), load_lanes(a.dlogits + at)));
        }
    }
    if (blockIdx.x != 0) return;
    const float loss = block_sum(a.B, [&](int r) { return a.rows[r * AUX_COLUMNS + AUX_LOSS]; });
    FX_FOR(only, 1) {
        a.loss[0] = loss / (float)a.B;
        a.scale[0] = scale;
    }
}
