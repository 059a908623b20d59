// iqn_gather: what iqn_loss left row by row, brought together: the head's gradient, each column over the rows that took its
// action; the trunk's gradient within its share of the gradient budget; the metrics.
//
// Launch: grid (1 + trunk_blocks + Sp ceil(Hp / IQN_GATHER_COLS)), any block. Block 0 makes the metrics and the bias; then come
// the blocks of the trunk, each of which adds up the B squared norms itself (cheaper than one more node) and takes every
// trunk_blocks-th row; then those of the head's weights, a column and IQN_GATHER_COLS of H each.
// Order of additions in the weights: every IQN_GATHER_ROWS-th row ascending, then those sums ascending.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/iqn.h"
#include "heads/share.h"
#include "lib/lanes.h"
#include "lib/reduce.h"
#include "lib/rows.h"

namespace {

FX_DEVICE float trunk_scale(const iqn_gather_args &a) {
    const int C = IQN_COLUMNS + a.K;
    return fx::share_scale(a.share * a.step->grad_budget, a.B,
                           [&](int r) { return a.rows[(int64_t)r * C + IQN_NORM2]; });
}

}  // namespace

FX_KERNEL_ANYBLOCK(iqn_gather) {
    using namespace fx;
    __shared__ float part[IQN_GATHER_ROWS * IQN_GATHER_COLS];
    const int B = a.B, K = a.K, C = IQN_COLUMNS + K;
    int block = (int)blockIdx.x;
    if (block == 0) {
        const float scale = trunk_scale(a);
        auto mean = [&](int c) { return block_sum(B, [&](int r) { return a.rows[(int64_t)r * C + c]; }) / (float)B; };
        const float loss = mean(IQN_LOSS), spread = mean(IQN_SPREAD);
        FX_FOR(only, 1) a.metrics[0] = loss, a.metrics[1] = scale, a.metrics[2] = spread;
        FX_ROWS(s, a.Sp) {
            const float sum = lane_sum(B * K, [&](int t) {
                return a.column[t] == s ? a.rows[(int64_t)(t / K) * C + IQN_COLUMNS + t % K] : 0.0f;
            });
            FX_LANE_0 a.dbias[s] = sum;
        }
        return;
    }
    block -= 1;
    if (block < a.trunk_blocks) {
        const lanes scale = splat(trunk_scale(a));
        for (int row = block; row < B; row += a.trunk_blocks) {
            FX_FOR(v, a.Hp / LANES) {
                const int64_t at = (int64_t)row * a.Hp + (int64_t)v * LANES;
                store_lanes(a.dtrunk + at, scale * load_lanes(a.dx + at));
            }
        }
        return;
    }
    block -= a.trunk_blocks;
    const int across = ceil_div(a.Hp, IQN_GATHER_COLS), s = block / across, begin = block % across * IQN_GATHER_COLS;
    const int columns = min(IQN_GATHER_COLS, a.Hp - begin), V = columns / LANES;
    FX_FOR(t, IQN_GATHER_ROWS * V) {
        const int p = t / V, at = t % V * LANES;
        lanes sum = splat(0.0f);
        for (int r = p; r < B; r += IQN_GATHER_ROWS)
            for (int b = 0; b < K; ++b)
                if (a.column[r * K + b] == s)
                    sum = sum + load_lanes(a.dhead + ((int64_t)r * K + b) * a.Hp + begin + at);
        store_lanes(part + p * columns + at, sum);
    }
    __syncthreads();
    FX_FOR(h, columns) {
        float sum = 0.0f;
        for (int p = 0; p < IQN_GATHER_ROWS; ++p) sum += part[p * columns + h];
        a.dw[(int64_t)(begin + h) * a.Sp + s] = sum;
    }
}
