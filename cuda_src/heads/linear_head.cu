// head_gradient: dW = x^T d and db of a head of a few outputs, and the means of what its kernel reports.
//
// Launch: grid (ceil(Hp / HEAD_COLUMNS) + 1), any block; the last block makes the bias and the means. A warp a sum, over the
// rows, by a fixed tree.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "lib/rows.h"

FX_KERNEL_ANYBLOCK(head_gradient) {
    const int begin = (int)blockIdx.x * HEAD_COLUMNS, B = a.B;
    auto of = [&](int r, int column) { return a.rows[(int64_t)r * a.C + column]; };
    if (begin >= a.Hp) {
        FX_ROWS(c, a.first + a.outputs) {
            const float sum = fx::lane_sum(B, [&](int r) { return of(r, c); });
            FX_LANE_0 {
                if (c < a.first) a.means[c] = sum / (float)B;
                else a.dbias[c - a.first] = sum;
            }
        }
        FX_FOR(j, HEAD_WIDTH - a.outputs) a.dbias[a.outputs + j] = 0.0f;
        return;
    }
    const int columns = min(HEAD_COLUMNS, a.Hp - begin);
    const int outputs = a.outputs;
    FX_ROWS(t, columns * outputs) {
        const int k = begin + t / outputs, o = t % outputs;
        const float sum = fx::lane_sum(B, [&](int r) { return of(r, a.first + o) * a.x[(int64_t)r * a.Hp + k]; });
        FX_LANE_0 a.dw[k * HEAD_WIDTH + o] = sum;
    }
    FX_FOR(i, columns * HEAD_WIDTH)
        if (i % HEAD_WIDTH >= outputs) a.dw[begin * HEAD_WIDTH + i] = 0.0f;
}
