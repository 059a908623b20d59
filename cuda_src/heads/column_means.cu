// Means over the rows of the columns of a small table: what a feature reports of its rows, as metrics.
//
// Launch: grid (1,), any block. A warp a column, by a fixed tree. 4 R C bytes.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "lib/rows.h"

FX_KERNEL_ANYBLOCK(column_means) {
    FX_ROWS(c, a.means_of) {
        const float sum = fx::lane_sum(a.R, [&](int r) { return a.rows[(int64_t)r * a.C + c]; });
        FX_LANE_0 a.means[c] = sum / (float)a.R;
    }
}
