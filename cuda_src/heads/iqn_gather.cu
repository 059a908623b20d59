// iqn_gather: what iqn_loss left row by row, brought together: the head's gradient, each column over the rows that took its
// action; the trunk's gradient within its share of the gradient budget; the metrics.
//
// Launch: grid (1 + trunk_blocks + splits Sp ceil(Hp / IQN_GATHER_COLS)), any block. Block 0 makes the metrics; then come the
// blocks of the trunk, each of which adds up the B squared norms itself (cheaper than one more node) and takes its run of rows;
// then those of the head, each a split of the rows, a column and IQN_GATHER_COLS of H; the first of a column also its bias.
// Order of additions in the head: a split's rows in IQN_GATHER_ROWS interleaved runs, ascending, then the runs ascending;
// grad_reduce adds the splits.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/iqn.h"
#include "heads/share.h"
#include "lib/branches.h"
#include "lib/lanes.h"
#include "lib/reduce.h"
#include "lib/rows.h"

namespace {

FX_DEVICE float trunk_scale(const iqn_gather_args &a) {
    const int C = IQN_COLUMNS + a.K;
    return fx::share_scale(a.share * a.step->grad_budget, a.B,
                           [&](int r) { return a.rows[(int64_t)r * C + IQN_NORM2]; });
}

FX_DEVICE void metrics(const iqn_gather_args &a) {
    const int B = a.B, C = IQN_COLUMNS + a.K;
    const float scale = trunk_scale(a);
    auto mean = [&](int c) { return fx::block_sum(B, [&](int r) { return a.rows[(int64_t)r * C + c]; }) / (float)B; };
    const float loss = mean(IQN_LOSS), spread = mean(IQN_SPREAD);
    FX_FOR(only, 1) a.metrics[0] = loss, a.metrics[1] = scale, a.metrics[2] = spread;
}

FX_DEVICE void trunk(const iqn_gather_args &a, int block) {
    using namespace fx;
    const lanes scale = splat(trunk_scale(a));
    const int chunk = ceil_div(a.B, a.trunk_blocks), begin = min(block * chunk, a.B), rows = min(chunk, a.B - begin);
    const size_t from = (size_t)begin * a.Hp;
    FX_FOR(v, rows * (a.Hp / LANES)) {
        const size_t at = from + (size_t)v * LANES;
        store_lanes(a.dtrunk + at, scale * load_lanes(a.dx + at));
    }
}

}  // namespace

FX_KERNEL_ANYBLOCK(iqn_gather) {
    using namespace fx;
    __shared__ float part[IQN_GATHER_ROWS * IQN_GATHER_COLS];
    int block = (int)blockIdx.x;
    if (block == 0) return metrics(a);
    block -= 1;
    if (block < a.trunk_blocks) return trunk(a, block);
    block -= a.trunk_blocks;
    const int across = ceil_div(a.Hp, IQN_GATHER_COLS), split = block / (a.Sp * across), rest = block % (a.Sp * across);
    const int s = rest / across, left = rest % across * IQN_GATHER_COLS;
    const int columns = min(IQN_GATHER_COLS, a.Hp - left), vectors = columns / LANES;
    const int chunk = ceil_div(a.B, a.splits), begin = min(split * chunk, a.B), end = min(begin + chunk, a.B);
    // A column is of one branch, whose action a row took or did not; pads are of the last, whose actions they are not.
    const int K = a.K, b = s < a.S ? branch_of(a.branch_sizes, s) : K - 1;
    FX_FOR(t, IQN_GATHER_ROWS * vectors) {
        const int group = t / vectors, at = t % vectors * LANES;
        lanes sum = splat(0.0f);
#pragma unroll 8
        for (int r = begin + group; r < end; r += IQN_GATHER_ROWS)
            if (a.column[r * K + b] == s) sum = sum + load_lanes(a.dhead + ((size_t)r * K + b) * a.Hp + left + at);
        store_lanes(part + group * columns + at, sum);
    }
    __syncthreads();
    float *dw = a.dw + split * a.split_stride;
    FX_FOR(h, columns) {
        float sum = 0.0f;
        for (int group = 0; group < IQN_GATHER_ROWS; ++group) sum += part[group * columns + h];
        dw[(size_t)(left + h) * a.Sp + s] = sum;
    }
    if (left > 0) return;
    FX_ROWS(only, 1) {
        const float sum = lane_sum(end - begin, [&](int i) {
            const int r = begin + i;
            return a.column[r * K + b] == s ? a.rows[(size_t)r * (IQN_COLUMNS + K) + IQN_COLUMNS + b] : 0.0f;
        });
        FX_LANE_0 a.dbias[split * a.split_stride + s] = sum;
    }
}
