// Adds an auxiliary loss's gradient to dlogits, within its share of the gradient budget: the norm over all rows (heads/share.h).
//
// Launch: grid (at most B,), any block; a block takes every gridDim-th row, and adds up the B squared norms itself: cheaper
// than one more node.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "heads/share.h"

FX_KERNEL_ANYBLOCK(aux_blend) {
    using namespace fx;
    const float scale =
        share_scale(a.share * a.step->grad_budget, a.B, [&](int r) { return a.rows[r * AUX_COLUMNS + AUX_NORM2]; });
    for (int row = (int)blockIdx.x; row < a.B; row += (int)gridDim.x)
        add_scaled_row(a.dlogits, a.part, scale, row, a.Np);
    if (blockIdx.x != 0) return;
    const float loss = block_sum(a.B, [&](int r) { return a.rows[r * AUX_COLUMNS + AUX_LOSS]; });
    FX_FOR(only, 1) {
        a.loss[0] = loss / (float)a.B;
        a.scale[0] = scale;
    }
}
