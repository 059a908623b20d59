// The reductions of lib/reduce.h and lib/rows.h on given rows, beside the one that an earlier system used (known failure
// K11): a maximum seeded with -1e30 that leaves NaN out reports -1e30 for a row of NaN.
//
// Launch: grid (rows,), any block.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/testing.h"
#include "lib/rows.h"

FX_KERNEL_ANYBLOCK(reduce_probe) {
    const float *x = a.x + (int64_t)blockIdx.x * a.n;
    float *y = a.y + (int64_t)blockIdx.x * 7;
    auto value = [&](int i) { return x[i]; };
    const float top = fx::block_max(a.n, value), bottom = fx::block_min(a.n, value);
    const fx::indexed best = fx::block_argmax(a.n, value);
    FX_FOR(one, 1) {
        y[0] = top;
        y[1] = bottom;
        y[2] = best.v;
        y[3] = (float)best.i;
        float seeded = -1e30f;
        for (int i = 0; i < a.n; ++i) seeded = fmaxf(seeded, x[i]);
        y[6] = seeded;
    }
    FX_ROWS(only, 1) {
        const float lane_top = fx::lane_max(a.n, value);
        const float mean = fx::lane_softmax(a.n, value, [](int) { return 1.0f; }).expectation;
        FX_LANE_0 {
            y[4] = lane_top;
            y[5] = mean;
        }
    }
}
