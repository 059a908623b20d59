// The blocks of linear_backward and linear_backward_pair that make dW and db.
//
// Order of additions: over the rows of a split, ascending. Squares in f64, so that a finite norm does not overflow and a non-finite one
// is never lost; tiles by a fixed tree.
#pragma once
#include "lib/reduce.h"
#include "network/stage.h"
#include "network/tile.h"

namespace {

constexpr int DW_TILES = LINEAR_MAX_ROWS * LINEAR_MAX_COLS / (fx::TILE_ROWS * fx::TILE_WIDTH);

// Writes a tile of dW or db; returns the sum of its squares.
template <int ROWS>
FX_DEVICE double store_tile(const fx::tile<ROWS> &acc, float *out, int ld) {
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

// What a weight block owns: `rows` rows of dW from k (none: the bias instead), `cols` columns from c, over the batch
// rows [begin, begin+n).
struct weight_region {
    int k, c, rows, cols, begin, n, col_tiles, tiles;
    float *dw, *db;
    const float *x, *dy;

    static FX_DEVICE int tile_rows(const linear_backward_args &a) {
#ifdef FX_GPU
        if (a.block_rows >= LINEAR_BIG_ROWS) return a.block_rows / 8;
#endif
        return fx::TILE_ROWS;
    }

    FX_DEVICE weight_region(const linear_backward_args &a, int split, int block) {
        int chunk = fx::ceil_div(a.R, a.splits), across = fx::ceil_div(a.Np, a.block_cols);
        begin = min(split * chunk, a.R), n = min(chunk, a.R - begin);
        k = block / across * a.block_rows, c = block % across * a.block_cols;
        rows = min(a.block_rows, max(a.Kp - k, 0)), cols = min(a.block_cols, a.Np - c);
        col_tiles = cols / fx::TILE_WIDTH;
        tiles = col_tiles * (rows ? rows / tile_rows(a) : 1);
        dw = a.dw + split * a.split_stride + (size_t)k * a.Np + c, db = a.db + split * a.split_stride + c;
        x = a.x + (size_t)begin * a.Kp + k, dy = a.dy + (size_t)begin * a.Np + c;
    }

    // Tile t; called by all threads of the block, also by those beyond the last tile.
    template <int ROWS, class A>
    FX_DEVICE double tile(const linear_backward_args &a, fx::stage &s, const A &left, float *out, int t) const {
        int row = t / col_tiles * ROWS, column = t % col_tiles * fx::TILE_WIDTH;
        bool works = t < tiles && (rows == 0 || k + row < a.K);  // pad rows are written as zeros
        fx::tile<ROWS> acc;
        fx::clear<ROWS>(acc);
#ifdef FX_GPU
        if constexpr (ROWS >= fx::BIG_ROWS)
            fx::block_product_big(acc, n, left, dy, a.Np, s, rows, rows, cols, row, column, works);
        else
#endif
            fx::block_product<ROWS>(acc, n, left, dy, a.Np, s, rows, rows, cols, row, column, works);
        return t < tiles ? store_tile<ROWS>(acc, out + (size_t)row * a.Np + column, a.Np) : 0.0;
    }
};

// One such block; all threads call it. `squares` holds DW_TILES.
FX_DEVICE void weight_block(const linear_backward_args &a, int block, fx::stage &s, double *squares) {
    using namespace fx;
    const weight_region region(a, block / a.dw_blocks, block % a.dw_blocks);
    FX_FOR(t, max(region.tiles, (int)blockDim.x)) {
#ifdef FX_GPU
        if (region.rows && region.tile_rows(a) >= BIG_ROWS) {
            const along_columns left{region.x, a.Kp};
            const double sum = region.tile_rows(a) == BIG_ROWS ? region.tile<BIG_ROWS>(a, s, left, region.dw, t)
                                                               : region.tile<2 * BIG_ROWS>(a, s, left, region.dw, t);
            if (t < region.tiles) squares[t] = sum;
            continue;
        }
#endif
        double sum = region.rows ? region.tile<TILE_ROWS>(a, s, along_columns{region.x, a.Kp}, region.dw, t)
                                 : region.tile<1>(a, s, ones{}, region.db, t);
        if (t < region.tiles) squares[t] = sum;
    }
    if (!a.norm_part) return;
    __syncthreads();
    double sum = block_sum_f64(region.tiles, [&](int t) { return squares[t]; });
    FX_FOR(i, 1) a.norm_part[block] = sum;
}

}  // namespace
