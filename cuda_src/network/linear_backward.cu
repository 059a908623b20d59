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

// What a weight block owns: rows from k (a.Kp: the bias instead), columns from c, batch rows [begin, end).
struct weight_region {
    int k, c, begin, end, col_tiles, tiles;
    float *dw, *db;

    FX_DEVICE weight_region(const linear_backward_args &a, int split, int block) {
        int chunk = fx::ceil_div(a.R, a.splits), across = fx::ceil_div(a.Np, LINEAR_BLOCK_COLS);
        begin = min(split * chunk, a.R), end = min(begin + chunk, a.R);
        k = block / across * LINEAR_BLOCK_ROWS, c = block % across * LINEAR_BLOCK_COLS;
        col_tiles = min(LINEAR_BLOCK_COLS, a.Np - c) / fx::TILE_WIDTH;
        tiles = col_tiles * (k < a.Kp ? LINEAR_BLOCK_ROWS / fx::TILE_ROWS : 1);
        dw = a.dw + split * a.split_stride, db = a.db + split * a.split_stride;
    }
    FX_DEVICE double tile(const linear_backward_args &a, int t) const {
        int column = c + t % col_tiles * fx::TILE_WIDTH;
        if (k >= a.Kp) return bias_tile(a, db, begin, end, column);
        return weight_tile(a, dw, begin, end, k + t / col_tiles * fx::TILE_ROWS, column);
    }
};

// What an input block owns: `rows` rows of dX from r, LINEAR_DX_COLS columns from k.
struct input_region {
    static constexpr int COL_TILES = LINEAR_DX_COLS / fx::DOT_COLS;
    int r, k, rows, items;

    FX_DEVICE input_region(const linear_backward_args &a, int block) {
        int across = a.Kp / LINEAR_DX_COLS;
        r = block / across * LINEAR_DX_ROWS, k = block % across * LINEAR_DX_COLS;
        rows = min(LINEAR_DX_ROWS, a.R - r);
        items = fx::ceil_div(rows, fx::DOT_ROWS) * COL_TILES * fx::DOT_PARTS;
    }
    FX_DEVICE void item(const linear_backward_args &a, int i, float *part) const {
        using namespace fx;
        int p = i % DOT_PARTS, t = i / DOT_PARTS;
        int row = t / COL_TILES * DOT_ROWS, col = t % COL_TILES * DOT_COLS;
        float *out = part + p * DX_STRIDE + row * LINEAR_DX_COLS + col;
        const float *dy = a.dy + (size_t)(r + row) * a.Np, *w = a.w + (size_t)(k + col) * a.Np;
        if (row + DOT_ROWS <= rows)
            dots<DOT_ROWS, DOT_COLS>(out, LINEAR_DX_COLS, p, a.Np, dy, a.Np, w, a.Np);
        else
            for (; row < rows; ++row, dy += a.Np, out += LINEAR_DX_COLS)
                dots<1, DOT_COLS>(out, LINEAR_DX_COLS, p, a.Np, dy, a.Np, w, a.Np);
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(linear_backward) {
    using namespace fx;
    int block = (int)blockIdx.x, weight_blocks = a.splits * a.dw_blocks;
    if (block < weight_blocks) {
        __shared__ double squares[DW_TILES];
        weight_region region(a, block / a.dw_blocks, block % a.dw_blocks);
        FX_FOR(t, region.tiles) squares[t] = region.tile(a, t);
        if (!a.norm_part) return;
        __syncthreads();
        double s = block_sum_f64(region.tiles, [&](int t) { return squares[t]; });
        FX_FOR(i, 1) a.norm_part[block] = s;
    } else {
        __shared__ float part[DOT_PARTS * DX_STRIDE];
        input_region region(a, block - weight_blocks);
        FX_FOR(i, region.items) region.item(a, i, part);
        __syncthreads();
        FX_FOR(o, region.rows * LINEAR_DX_COLS) {
            float s = part[o];
            for (int p = 1; p < DOT_PARTS; ++p) s += part[p * DX_STRIDE + o];
            size_t at = (size_t)(region.r + o / LINEAR_DX_COLS) * a.Kp + region.k + o % LINEAR_DX_COLS;
            a.dx[at] = a.x[at] <= 0.0f ? 0.0f : s;  // a NaN activation lets the gradient through
        }
    }
}
