// How rows of statistics (abi/loss.h) combine: column 0 by minimum, column 1 by maximum, the others by addition.
#pragma once
#include "lib/reduce.h"

namespace fx {

FX_DEVICE float stats_identity(int column) {
    return column == STAT_Q_MIN ? INFINITY : column == STAT_Q_MAX ? -INFINITY : 0.0f;
}

FX_DEVICE float combine_stats(int column, float x, float y) {
    return column == STAT_Q_MIN ? op_min()(x, y) : column == STAT_Q_MAX ? op_max()(x, y) : x + y;
}

// One column over the rows [first, last), in ascending order. A GPU has the loads of 16 rows in flight at once, also of the
// last few (a compiler's unrolled loop takes those one by one).
FX_DEVICE float combine_column(const float *__restrict__ rows, int W, int column, int first, int last) {
    float v = stats_identity(column);
#ifdef FX_GPU
    for (int r = first; r < last; r += 16) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = r + i < last ? rows[(int64_t)(r + i) * W + column] : stats_identity(column);
#pragma unroll
        for (int i = 0; i < 16; ++i) v = combine_stats(column, v, x[i]);
    }
#else
    for (int r = first; r < last; ++r) v = combine_stats(column, v, rows[(int64_t)r * W + column]);
#endif
    return v;
}

}  // namespace fx
