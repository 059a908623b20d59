// linear_backward: one launch computes all that a layer's dY is needed for: dW = X^T dY and db, with the sum of squares
// for the global norm, and dX = (dY W^T) where X > 0, the gradient before the ReLU of the layer below.
//
// Launch: grid (splits*dw_blocks + dx_blocks), any block; 128 threads fill a GPU's.
//   dw_blocks = (Kp/LINEAR_BLOCK_ROWS + 1) * ceil(Np/LINEAR_BLOCK_COLS): the last row of blocks makes db
//   dx_blocks = ceil(R/LINEAR_DX_ROWS) * Kp/LINEAR_DX_COLS, or 0 without dx
// Order of additions: dW and db over the rows of a split, ascending; dX by named partial sums (tile.h), parts ascending;
// squares in f64 (so that a finite norm never overflows and a non-finite one is never lost), tiles by a fixed tree.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/network.h"
#include "network/tile.h"

namespace {

constexpr int DW_TILES = LINEAR_BLOCK_ROWS * LINEAR_BLOCK_COLS / (fx::TILE_ROWS * fx::TILE_WIDTH);
constexpr int DX_OUTPUTS = LINEAR_DX_ROWS * LINEAR_DX_COLS;
constexpr int DX_STRIDE = DX_OUTPUTS + 1;  // of two parts in shared memory: odd, so that parts fall into different banks

template <int ROWS>
FX_DEVICE double store_tile(float *out, int ld, fx::lanes (&acc)[ROWS][fx::TILE_COLS]) {
    double squares = 0.0;
    FX_UNROLL
    for (int i = 0; i < ROWS; ++i) {
        FX_UNROLL
        for (int j = 0; j < fx::TILE_COLS; ++j) {
            fx::store_lanes(out + (size_t)i * ld + j * fx::LANES, acc[i][j]);
            squares += fx::sum_of_squares(acc[i][j]);
        }
    }
    return squares;
}

// Rows k .. k+TILE_ROWS of dW, columns from c, over rows [begin, end) of the batch.
FX_DEVICE double weight_tile(const linear_backward_args &a, float *dw, int begin, int end, int k, int c) {
    using namespace fx;
    lanes acc[TILE_ROWS][TILE_COLS];
    FX_UNROLL
    for (int i = 0; i < TILE_ROWS; ++i) {
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j) acc[i][j] = splat(0.0f);
    }
    int n = k < a.K ? end - begin : 0;  // pad rows are written as zeros
    product(acc, n, along_columns{a.x + (size_t)begin * a.Kp + k, a.Kp}, a.dy + (size_t)begin * a.Np + c, a.Np);
    return store_tile(dw + (size_t)k * a.Np + c, a.Np, acc);
}

FX_DEVICE double bias_tile(const linear_backward_args &a, float *db, int begin, int end, int c) {
    using namespace fx;
    lanes acc[1][TILE_COLS];
    FX_UNROLL
    for (int j = 0; j < TILE_COLS; ++j) acc[0][j] = splat(0.0f);
#ifdef FX_GPU
#pragma unroll 8
#endif
    for (int r = begin; r < end; ++r) {
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j)
            acc[0][j] = acc[0][j] + load_lanes(a.dy + (size_t)r * a.Np + c + j * LANES);
    }
    return store_tile(db + c, a.Np, acc);
}

FX_DEVICE void weight_block(const linear_backward_args &a, int split, int block) {
    using namespace fx;
    __shared__ double squares[DW_TILES];
    int chunk = ceil_div(a.R, a.splits);
    int begin = min(split * chunk, a.R), end = min(begin + chunk, a.R);
    int across = ceil_div(a.Np, LINEAR_BLOCK_COLS);
    int k0 = block / across * LINEAR_BLOCK_ROWS, c0 = block % across * LINEAR_BLOCK_COLS;
    int col_tiles = min(LINEAR_BLOCK_COLS, a.Np - c0) / TILE_WIDTH;
    bool is_bias = k0 >= a.Kp;
    int tiles = col_tiles * (is_bias ? 1 : LINEAR_BLOCK_ROWS / TILE_ROWS);
    float *dw = a.dw + split * a.split_stride, *db = a.db + split * a.split_stride;
    FX_FOR(t, tiles) {
        int k = k0 + t / col_tiles * TILE_ROWS, c = c0 + t % col_tiles * TILE_WIDTH;
        squares[t] = is_bias ? bias_tile(a, db, begin, end, c) : weight_tile(a, dw, begin, end, k, c);
    }
    if (!a.norm_part) return;
    __syncthreads();
    double s = block_sum_f64(tiles, [&](int t) { return squares[t]; });
    FX_FOR(i, 1) a.norm_part[block] = s;
}

FX_DEVICE void input_block(const linear_backward_args &a, int block) {
    using namespace fx;
    __shared__ float part[DOT_PARTS * DX_STRIDE];
    int across = a.Kp / LINEAR_DX_COLS;
    int r0 = block / across * LINEAR_DX_ROWS, k0 = block % across * LINEAR_DX_COLS;
    int rows = min(LINEAR_DX_ROWS, a.R - r0);
    constexpr int COL_TILES = LINEAR_DX_COLS / DOT_COLS;
    FX_FOR(item, ceil_div(rows, DOT_ROWS) * COL_TILES * DOT_PARTS) {
        int p = item % DOT_PARTS, t = item / DOT_PARTS;
        int r = t / COL_TILES * DOT_ROWS, k = t % COL_TILES * DOT_COLS;
        float *out = part + p * DX_STRIDE + r * LINEAR_DX_COLS + k;
        const float *dy = a.dy + (size_t)(r0 + r) * a.Np, *w = a.w + (size_t)(k0 + k) * a.Np;
        if (r + DOT_ROWS <= rows)
            dots<DOT_ROWS, DOT_COLS>(out, LINEAR_DX_COLS, p, a.Np, dy, a.Np, w, a.Np);
        else
            for (; r < rows; ++r, dy += a.Np, out += LINEAR_DX_COLS)
                dots<1, DOT_COLS>(out, LINEAR_DX_COLS, p, a.Np, dy, a.Np, w, a.Np);
    }
    __syncthreads();
    FX_FOR(o, rows * LINEAR_DX_COLS) {
        float s = part[o];
        for (int p = 1; p < DOT_PARTS; ++p) s += part[p * DX_STRIDE + o];
        size_t at = (size_t)(r0 + o / LINEAR_DX_COLS) * a.Kp + k0 + o % LINEAR_DX_COLS;
        a.dx[at] = a.x[at] <= 0.0f ? 0.0f : s;  // NaN activations let the gradient through
    }
}

}  // namespace

FX_KERNEL_ANYBLOCK(linear_backward) {
    int block = (int)blockIdx.x, weight_blocks = a.splits * a.dw_blocks;
    if (block < weight_blocks)
        weight_block(a, block / a.dw_blocks, block % a.dw_blocks);
    else
        input_block(a, block - weight_blocks);
}
