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

#ifdef FX_GPU

// One column over the rows [first, last), in ascending order. The loads of 16 rows are in flight at once, also of the last
// few (a compiler's unrolled loop takes those one by one).
FX_DEVICE float combine_column(const float *__restrict__ rows, int W, int column, int first, int last) {
    float v = stats_identity(column);
    for (int r = first; r < last; r += 16) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = r + i < last ? rows[(int64_t)(r + i) * W + column] : stats_identity(column);
#pragma unroll
        for (int i = 0; i < 16; ++i) v = combine_stats(column, v, x[i]);
    }
    return v;
}

// The rows [first, last) to sums (segments, W), each over a stretch of equal length.
FX_DEVICE void combine_rows(const float *rows, int W, int first, int last, int segments, float *sums) {
    const int length = ceil_div(last - first, segments);
    FX_FOR(i, segments * W) {
        const int segment = segments == 1 ? 0 : i / W, c = i - segment * W, from = min(first + segment * length, last);
        sums[i] = combine_column(rows, W, c, from, min(from + length, last));
    }
}

#else

// The same sums in the same order, a row at a time: the columns are vector code.
FX_DEVICE void combine_rows(const float *rows, int W, int first, int last, int segments, float *__restrict__ sums) {
    const int length = ceil_div(last - first, segments);
    for (int segment = 0; segment < segments; ++segment, sums += W) {
        for (int c = 0; c < W; ++c) sums[c] = stats_identity(c);
        const int from = min(first + segment * length, last), to = min(from + length, last);
        for (int r = from; r < to; ++r) {
            const float *row = rows + (int64_t)r * W;
            sums[STAT_Q_MIN] = op_min()(sums[STAT_Q_MIN], row[STAT_Q_MIN]);
            sums[STAT_Q_MAX] = op_max()(sums[STAT_Q_MAX], row[STAT_Q_MAX]);
            for (int c = STAT_Q_MAX + 1; c < W; ++c) sums[c] += row[c];
        }
    }
}

#endif

}  // namespace fx
