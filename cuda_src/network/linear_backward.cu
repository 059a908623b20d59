// linear_backward: one launch computes all that a layer's dY is needed for: dW = X^T dY and db, with the sum of squares
// for the global norm, and dX = (dY W^T + what other heads add) where X > 0, the gradient before the ReLU of the layer
// below.
//
// Launch: grid (splits*dw_blocks + dx_blocks); block: 128 threads (a thread on the GPU has one tile of dW, of 2 x 4 results or,
// from LINEAR_BIG_ROWS on, of block_rows/8 x 4; or one part of a tile of dX).
//   dw_blocks = (ceil(Kp/block_rows) + 1) * ceil(Np/block_cols): the last row of blocks makes db
//   dx_blocks = ceil(R/dx_rows) * Kp/dx_cols, or 0 without dx
// Order of additions: dW and db over the rows of a split, ascending. dX by named partial sums (dots() in tile.h): the
// lanes of a part as a tree, then parts ascending; a tile has one part on the host, and on the GPU as many as make a
// region's tiles DOT_THREADS.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/network.h"
#include "network/stage.h"
#include "network/tile.h"
#include "network/weight_block.h"

namespace {

#ifdef FX_GPU
constexpr int DOT_THREADS = 128;
#else
constexpr int DOT_THREADS = 1;
#endif
constexpr int MAX_PARTS = DOT_THREADS > 32 ? 32 : 1;
constexpr int DX_SUMS = DOT_THREADS * fx::DOT_ROWS * fx::DOT_COLS + LINEAR_MAX_DX + MAX_PARTS;

// What an input block owns: `rows` rows of dX from r, dx_cols columns from k.
struct input_region {
    int r, k, rows, col_tiles, parts, stride, items, step;

    FX_DEVICE input_region(const linear_backward_args &a, int block) {
        int across = a.Kp / a.dx_cols;
        r = block / across * a.dx_rows, k = block % across * a.dx_cols;
        rows = min(a.dx_rows, a.R - r), col_tiles = a.dx_cols / fx::DOT_COLS;
        parts = min(MAX_PARTS, fx::ceil_div(DOT_THREADS, a.dx_rows / fx::DOT_ROWS * col_tiles));
        stride = a.dx_rows * a.dx_cols + 1;  // odd, so that the parts fall into different banks
        items = fx::ceil_div(rows, fx::DOT_ROWS) * col_tiles * parts;
        // On a GPU the columns of a tile stand apart where a warp has many tiles, so that these fall into different banks.
        step = MAX_PARTS > 1 && parts == 1 ? col_tiles : 1;
    }
    // Part p of the tile at (row, col); called by all threads of the block.
    template <int ROWS>
    FX_DEVICE void tile(const linear_backward_args &a, fx::dot_stage &s, float *sums, int p, int row, int col) const {
        using namespace fx;
        lanes acc[ROWS][DOT_COLS];
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int c = 0; c < DOT_COLS; ++c) acc[i][c] = splat(0.0f);
        }
        const float *dy = a.dy + (size_t)r * a.Np, *w = a.w + (size_t)k * a.Np;
        block_dots<ROWS, DOT_COLS>(acc, p, parts, a.Np, dy, w, a.Np, s, a.dx_rows, rows - 1, a.dx_cols, row, col, step,
                                   row < rows);
        if (row >= rows) return;
        float *out = sums + p * stride + row * a.dx_cols + col;
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int c = 0; c < DOT_COLS; ++c) out[i * a.dx_cols + c * step] = sum(acc[i][c]);
        }
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(linear_backward) {
    using namespace fx;
    __shared__ union {
        stage product;
        dot_stage dots;
    } s;
    __shared__ union {
        double squares[DW_TILES];
        float sums[DX_SUMS];
    } results;
    int block = (int)blockIdx.x, weight_blocks = a.splits * a.dw_blocks;
    if (block < weight_blocks) {
        weight_block(a, block, s.product, results.squares);
    } else {
        float *sums = results.sums;
        input_region region(a, block - weight_blocks);
        const int outputs = region.rows * a.dx_cols;
        auto place = [&](int o) { return (size_t)(region.r + o / a.dx_cols) * a.Kp + region.k + o % a.dx_cols; };
#ifdef FX_GPU  // the activation of a thread's first output is under way during the products
        const float early = a.x[place(min((int)threadIdx.x, outputs - 1))];
#endif
        FX_FOR(i, max(region.items, (int)blockDim.x)) {
            int p = i % region.parts, t = i / region.parts;
            int row = t / region.col_tiles * DOT_ROWS, col = t % region.col_tiles * (region.step == 1 ? DOT_COLS : 1);
#ifdef FX_HOST  // rows beyond the last may not be read; on the GPU the stage repeats the last instead
            if (row + DOT_ROWS > region.rows) {
                for (; row < region.rows; ++row) region.tile<1>(a, s.dots, sums, p, row, col);
                continue;
            }
#endif
            region.tile<DOT_ROWS>(a, s.dots, sums, p, row, col);
        }
        __syncthreads();
        FX_FOR(o, outputs) {
            float s = sums[o];
#pragma unroll 8
            for (int p = 1; p < region.parts; ++p) s += sums[p * region.stride + o];
            for (int h = 0; h < a.more; ++h) s += a.dx_more[(size_t)h * a.R * a.Kp + place(o)];
#ifdef FX_GPU
            const float x = o == (int)threadIdx.x ? early : a.x[place(o)];
#else
            const float x = a.x[place(o)];
#endif
            a.dx[place(o)] = a.relu && x <= 0.0f ? 0.0f : s;  // a NaN activation lets the gradient through
        }
    }
}
