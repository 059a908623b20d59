// An auxiliary loss's share of the gradient budget G: its gradient's norm is at most share * G, where there is a budget
// (training-step 6; loss/head_gradient.h has that of the main loss).
#pragma once

#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"

namespace fx {

FX_DEVICE float share_scale(float limit, float norm) { return limit > 0.0f && norm > limit ? limit / norm : 1.0f; }

// The factor for a gradient whose n sums of squares are f(i). All threads of the block call it, and without a budget nothing is
// added up.
template <class F>
FX_DEVICE float share_scale(float limit, int n, F f) {
    return limit > 0.0f ? share_scale(limit, sqrtf(block_sum(n, f))) : 1.0f;
}

// dlogits += scale * part, a row of Np floats: a multiple of 16.
FX_DEVICE void add_scaled_row(float *dlogits, const float *part, float scale, int row, int Np) {
    FX_FOR(i, Np / LANES) {
        const int64_t at = (int64_t)row * Np + (int64_t)i * LANES;
        store_lanes(dlogits + at, fma(splat(scale), load_lanes(part + at), load_lanes(dlogits + at)));
    }
}

}  // namespace fx
