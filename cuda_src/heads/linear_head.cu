// head_gradient: dW = x^T d and db of a head of a few outputs, and the means of what its kernel reports.
//
// Launch: grid (splits * ceil(Hp / HEAD_COLUMNS) + first + outputs), any block. First the blocks of dW, each HEAD_COLUMNS columns
// over the rows of a split; then a block a column of `rows`: a mean or the gradient of a bias.
// Order of additions in dW: a split's rows in GROUPS interleaved runs, ascending, then the runs ascending; grad_reduce adds the
// splits. Bytes: 4 Hp a row, once.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "lib/lanes.h"
#include "lib/reduce.h"

namespace {

constexpr int GROUPS = 16;   // runs of rows, each with threads of its own
constexpr int TOGETHER = 4;  // outputs that share a load of x

}  // namespace

FX_KERNEL_ANYBLOCK(head_gradient) {
    using namespace fx;
    __shared__ float part[GROUPS * TOGETHER * HEAD_COLUMNS];
    const int across = ceil_div(a.Hp, HEAD_COLUMNS), block = (int)blockIdx.x, column = block - a.splits * across;
    if (column >= 0) {
        const float sum = block_sum(a.B, [&](int r) { return a.rows[(size_t)r * a.C + column]; });
        FX_FOR(only, 1) {
            if (column < a.first) a.means[column] = sum / (float)a.B;
            else a.dbias[column - a.first] = sum;
        }
        if (column == 0)
            FX_FOR(j, HEAD_WIDTH - a.outputs) a.dbias[a.outputs + j] = 0.0f;
        return;
    }
    const int split = block / across, left = block % across * HEAD_COLUMNS, columns = min(HEAD_COLUMNS, a.Hp - left);
    const int chunk = ceil_div(a.B, a.splits), begin = min(split * chunk, a.B), end = min(begin + chunk, a.B);
    const int vectors = columns / LANES;
    float *dw = a.dw + ((size_t)split * a.Hp + left) * HEAD_WIDTH;
    for (int o = 0; o < a.outputs; o += TOGETHER) {
        const int count = min(TOGETHER, a.outputs - o);
        FX_FOR(t, GROUPS * vectors) {
            const int group = t / vectors, at = t % vectors * LANES;
            lanes sum[TOGETHER];
            FX_UNROLL
            for (int k = 0; k < TOGETHER; ++k) sum[k] = splat(0.0f);
            const float *x = a.x + (size_t)(begin + group) * a.Hp + left + at;
            const float *d = a.rows + (size_t)(begin + group) * a.C + a.first + o;
#pragma unroll 4
            for (int r = begin + group; r < end; r += GROUPS, x += (size_t)GROUPS * a.Hp, d += (size_t)GROUPS * a.C) {
                const lanes v = load_lanes(x);
                FX_UNROLL
                for (int k = 0; k < TOGETHER; ++k)
                    if (k < count) sum[k] = fma(splat(d[k]), v, sum[k]);
            }
            FX_UNROLL
            for (int k = 0; k < TOGETHER; ++k) store_lanes(part + (group * TOGETHER + k) * HEAD_COLUMNS + at, sum[k]);
        }
        __syncthreads();
        FX_FOR(t, count * columns) {
            const int k = t / columns, h = t % columns;
            float sum = 0.0f;
            for (int group = 0; group < GROUPS; ++group) sum += part[(group * TOGETHER + k) * HEAD_COLUMNS + h];
            dw[h * HEAD_WIDTH + o + k] = sum;
        }
        __syncthreads();
    }
    FX_FOR(i, columns * HEAD_WIDTH)
        if (i % HEAD_WIDTH >= a.outputs) dw[i] = 0.0f;
}
