// linear_backward_pair: the gradients of both layers of a linear_pair in one launch, where linear_backward takes two: dW = X^T dY and db,
// and with E = dY W^T where X > 0, the gradient before the first layer's ReLU, dW0 = X0^T E and db0.
//
// Launch: grid (dw_blocks + Mp/PAIR_GRADIENT_COLS), any block (a GPU has use for 160 threads: a vector of dW0 each, and of db0).
// E goes to no memory: a block of dW0 makes the columns that it needs, R x PAIR_GRADIENT_COLS sums of Np terms, from all of dY. All
// operands are on their way at once: one trip to L2 and two products behind a launch instead of two of each.
// Order of additions: dW, db: weight_block.h. E: the lanes of a dot product as a tree; dW0, db0: over the rows, ascending.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/network.h"
#include "network/stage.h"
#include "network/tile.h"
#include "network/weight_block.h"

namespace {

constexpr int COLS = PAIR_GRADIENT_COLS, VECTORS = COLS / fx::LANES;
#ifdef FX_GPU
// Rows of a tile of E lie half of all rows apart, so that the lanes of a warp read rows side by side, from different banks.
constexpr int E_ROWS = 2, E_COLS = 2, PAIR_LD = PAIR_WIDTH + 4;
#else
constexpr int E_ROWS = 1, E_COLS = 4;
#endif

struct pair_stage {
    alignas(16) float e[PAIR_GRADIENT_ROWS * COLS];
#ifdef FX_GPU
    alignas(16) float dy[PAIR_GRADIENT_ROWS * PAIR_LD];
    alignas(16) float w[COLS * PAIR_LD];
    alignas(16) float x[PAIR_GRADIENT_ROWS * COLS];
    alignas(16) float x0[PAIR_GRADIENT_ROWS * PAIR_WIDTH];
#endif
};

// The columns [c, c + COLS) of dW0 and db0; returns the sum of their squares.
FX_DEVICE double first_layer(const linear_backward_pair_args &a, pair_stage &s, int c) {
    using namespace fx;
    const float *dy = a.dy, *w = a.w + (size_t)c * a.Np, *x = a.x + c, *x0 = a.x0;
    int ld = a.Np, ldx = a.Mp, ldx0 = a.Kp;
#ifdef FX_GPU
    copy_block(s.dy, PAIR_LD, dy, a.Np, a.R, a.R, a.Np);
    copy_block(s.w, PAIR_LD, w, a.Np, COLS, COLS, a.Np);
    copy_block(s.x, COLS, x, a.Mp, a.R, a.R, COLS);
    copy_block(s.x0, PAIR_WIDTH, x0, a.Kp, a.R, a.R, a.Kp);
    copy_async_wait();
    __syncthreads();
    dy = s.dy, w = s.w, x = s.x, x0 = s.x0, ld = PAIR_LD, ldx = COLS, ldx0 = PAIR_WIDTH;
#endif
    const int apart = ceil_div(a.R, E_ROWS);
    FX_FOR(t, apart * (COLS / E_COLS)) {
        const int r = t % apart, column = t / apart * E_COLS;
        lanes acc[E_ROWS][E_COLS];
        FX_UNROLL
        for (int i = 0; i < E_ROWS; ++i) {
            FX_UNROLL
            for (int j = 0; j < E_COLS; ++j) acc[i][j] = splat(0.0f);
        }
        // beyond the last row the last once more
        const int last = min(r + apart, a.R - 1);
        dots(acc, 0, 1, a.Np, dy + (size_t)r * ld, (last - r) * ld, w + (size_t)column * ld, ld);
        FX_UNROLL
        for (int i = 0; i < E_ROWS; ++i) {
            const int row = r + i * apart;
            if (row >= a.R) break;
            FX_UNROLL
            for (int j = 0; j < E_COLS; ++j) {
                const float h = x[(size_t)row * ldx + column + j];  // NaN lets the gradient through
                s.e[row * COLS + column + j] = h <= 0.0f ? 0.0f : sum(acc[i][j]);
            }
        }
    }
    __syncthreads();
    // A vector of row k of dW0; behind the last row those of db0.
    return block_sum_f64((a.Kp + 1) * VECTORS, [&](int t) {
        const int vector = t % VECTORS * LANES, k = t / VECTORS;
        const float *e = s.e + vector;
        lanes g = splat(0.0f);
        if (k == a.Kp) {
            for (int r = 0; r < a.R; ++r) g = g + load_lanes(e + r * COLS);
            store_lanes(a.db0 + c + vector, g);
        } else {
            if (k < a.K) {  // pad rows are written as zeros
#pragma unroll 8
                for (int r = 0; r < a.R; ++r) g = fma(splat(x0[(size_t)r * ldx0 + k]), load_lanes(e + r * COLS), g);
            }
            store_lanes(a.dw0 + (size_t)k * a.Mp + c + vector, g);
        }
        return sum_of_squares(g);
    });
}

// The second layer's weight blocks are those of linear_backward.
FX_DEVICE linear_backward_args second_layer(const linear_backward_pair_args &a) {
    linear_backward_args b = {};
    b.x = a.x, b.dy = a.dy, b.dw = a.dw, b.db = a.db, b.norm_part = a.norm_part;
    b.R = a.R, b.K = a.M, b.Kp = a.Mp, b.Np = a.Np, b.splits = 1;
    b.dw_blocks = a.dw_blocks, b.block_rows = a.block_rows, b.block_cols = a.block_cols;
    return b;
}

}  // namespace

FX_KERNEL_ANYBLOCK(linear_backward_pair) {
    __shared__ union {
        fx::stage product;
        pair_stage pair;
    } s;
    __shared__ double squares[DW_TILES];
    const int block = (int)blockIdx.x;
    if (block < a.dw_blocks) {
        weight_block(second_layer(a), block, s.product, squares);
    } else {
        const double sum = first_layer(a, s.pair, (block - a.dw_blocks) * COLS);
        FX_FOR(i, 1) a.norm_part[block] = sum;
    }
}
