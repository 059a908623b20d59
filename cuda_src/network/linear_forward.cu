// linear_forward: y = act(x W + b) for up to three passes at once (grid z): online on s, online on s', target on s'.
//
// Launch: grid (ceil(Np / block_cols), ceil(R / block_rows), passes); block: block_rows/2 * block_cols/4 threads, a multiple of
// 32, and from LINEAR_BIG_ROWS on 128 (a thread on the GPU has one tile of 2 x 4 outputs, or of block_rows/8 x 4).
// Each output is bias (+ y, with residual) + sum_k x[k] w[k], k ascending, one fused multiply-add a step, on both targets.
// Pads: rows of W from K up to the next multiple of 16 hold zeros and are added, those beyond are not read; columns of
// pads come out as zero because W and b hold zeros there.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/network.h"
#include "network/stage.h"
#include "network/tile.h"

namespace {

// What a block owns: `rows` rows of outputs and `cols` columns of one pass; pointers to its first.
struct forward_region {
    const float *x, *w, *bias;
    float *y;
    int rows, cols, n;

    FX_DEVICE forward_region(const linear_forward_args &a, int pass, int r, int c) {
        x = (pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2)) + (size_t)r * a.Kp;
        w = (pass < 2 ? a.w : a.w_target) + c, bias = (pass < 2 ? a.bias : a.bias_target) + c;
        y = a.y + ((size_t)pass * a.R + r) * a.Np + c;
        rows = min(a.block_rows, a.R - r), cols = min(a.block_cols, a.Np - c);
        n = fx::ceil_div(a.K, 16) * 16;
    }

    template <int ROWS>
    FX_DEVICE void product_of(fx::lanes (&acc)[ROWS][fx::TILE_COLS], fx::stage &s, const linear_forward_args &a, int row,
                           int column) const {
        const fx::along_rows left{x, a.Kp};
#ifdef FX_GPU
        if constexpr (ROWS >= fx::BIG_ROWS)
            return fx::block_product_big(acc, n, left, w, a.Np, s, a.block_rows, rows - 1, cols, row, column,
                                         row < rows);
#endif
        fx::block_product<ROWS>(acc, n, left, w, a.Np, s, a.block_rows, rows - 1, cols, row, column, row < rows);
    }

    template <int ROWS>
    FX_DEVICE void tile(const linear_forward_args &a, fx::stage &s, int row, int column) const {
        using namespace fx;
        fx::tile<ROWS> acc;
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j) {
            lanes b = load_lanes(bias + column + j * LANES);
            FX_UNROLL
            for (int i = 0; i < ROWS; ++i) acc[i][j] = b;
        }
        if (a.residual) {
            FX_UNROLL
            for (int i = 0; i < ROWS; ++i) {
                if (row + i >= rows) break;
                FX_UNROLL
                for (int j = 0; j < TILE_COLS; ++j)
                    acc[i][j] = acc[i][j] + load_lanes(y + (size_t)(row + i) * a.Np + column + j * LANES);
            }
        }
        product_of(acc, s, a, row, column);
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            if (row + i >= rows) break;
            FX_UNROLL
            for (int j = 0; j < TILE_COLS; ++j)
                store_lanes(y + (size_t)(row + i) * a.Np + column + j * LANES, a.relu ? relu(acc[i][j]) : acc[i][j]);
        }
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(linear_forward) {
    using namespace fx;
    __shared__ stage s;
    forward_region region(a, (int)blockIdx.z, (int)blockIdx.y * a.block_rows, (int)blockIdx.x * a.block_cols);
    int across = region.cols / TILE_WIDTH;
#ifdef FX_GPU
    if (a.block_rows >= LINEAR_BIG_ROWS) {
        const int row = (int)threadIdx.x / across, column = (int)threadIdx.x % across * TILE_WIDTH;
        if (a.block_rows == LINEAR_BIG_ROWS) region.tile<BIG_ROWS>(a, s, row * BIG_ROWS, column);
        else region.tile<2 * BIG_ROWS>(a, s, row * 2 * BIG_ROWS, column);
        return;
    }
#endif
    FX_FOR(t, max(ceil_div(region.rows, TILE_ROWS) * across, (int)blockDim.x)) {
        int row = t / across * TILE_ROWS, column = t % across * TILE_WIDTH;
#ifdef FX_HOST  // rows beyond the last may not be read; on the GPU the stage repeats the last instead
        if (row + TILE_ROWS > region.rows) {
            for (; row < region.rows; ++row) region.tile<1>(a, s, row, column);
            continue;
        }
#endif
        region.tile<TILE_ROWS>(a, s, row, column);
    }
}
