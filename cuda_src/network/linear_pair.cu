// linear_pair: two narrow layers in one launch, y = relu(x W + b), y2 = relu(y W2 + b2), for up to three passes at once (grid y):
// online on s, online on s', target on s'. A dependent launch less: of a layer of 64 units it is most of the price.
//
// Launch: grid (ceil(R / PAIR_ROWS), passes), at most 128 threads (an output row of four columns each). Without these bounds ptxas
// holds the kernel to 32 registers, and of the weights' 64 loads from shared memory four are in flight instead of twelve.
// Every block stages both layers' weights, 4 (K Mp + Mp Np) bytes, all in flight at once: for large batches two launches are better.
// Each output is bias + sum_k x[k] w[k], k ascending, one fused multiply-add a step: the bits of two launches of linear_forward.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/network.h"
#include "network/stage.h"
#include "network/tile.h"

namespace {

#ifdef FX_GPU
constexpr int PAIR_TILE_ROWS = 1;
#else
constexpr int PAIR_TILE_ROWS = fx::TILE_ROWS;
#endif
constexpr int PAIR_LD = PAIR_WIDTH + 4;  // of inputs in shared memory, so that two rows fall into different banks

struct narrow_layer {
    const float *w, *bias;
    int ldw, n, columns;  // of w in place; inputs; outputs

    // A tile of ROWS outputs over each other: to y (rows, columns), and to `kept` where that is not null.
    template <int ROWS>
    FX_DEVICE void tile(const float *x, int ldx, float *y, float *kept, int row, int column) const {
        using namespace fx;
        fx::tile<ROWS> acc;
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j) {
            const lanes b = load_lanes(bias + column + j * LANES);
            FX_UNROLL
            for (int i = 0; i < ROWS; ++i) acc[i][j] = b;
        }
        product<ROWS>(acc, n, along_rows{x, ldx}.row(row), w + column, ldw);
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int j = 0; j < TILE_COLS; ++j) {
                const lanes v = relu(acc[i][j]);
                store_lanes(y + (size_t)(row + i) * columns + column + j * LANES, v);
                if (kept) store_lanes(kept + (row + i) * PAIR_LD + column + j * LANES, v);
            }
        }
    }

    FX_DEVICE void apply(const float *x, int ldx, int rows, float *y, float *kept) const {
        const int across = columns / fx::TILE_WIDTH;
        FX_FOR(t, fx::ceil_div(rows, PAIR_TILE_ROWS) * across) {
            int row = t / across * PAIR_TILE_ROWS;
            const int column = t % across * fx::TILE_WIDTH;
            if (row + PAIR_TILE_ROWS <= rows) tile<PAIR_TILE_ROWS>(x, ldx, y, kept, row, column);
            else
                for (; row < rows; ++row) tile<1>(x, ldx, y, kept, row, column);
        }
    }
};

}  // namespace

#ifdef FX_GPU
extern "C" __global__ void __launch_bounds__(128, 2) linear_pair(const __grid_constant__ linear_pair_args a);
#endif

FX_KERNEL_ANYBLOCK(linear_pair) {
    using namespace fx;
    const int pass = (int)blockIdx.y, r = (int)blockIdx.x * PAIR_ROWS, rows = min(PAIR_ROWS, a.R - r);
    const float *x = (pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2)) + (size_t)r * a.Kp;
    const bool online = pass < 2;
    narrow_layer first{online ? a.w : a.w_target, online ? a.bias : a.bias_target, a.Mp, ceil_div(a.K, 16) * 16, a.Mp};
    narrow_layer second{online ? a.w2 : a.w2_target, online ? a.bias2 : a.bias2_target, a.Np, a.Mp, a.Np};
    float *y = a.y + ((size_t)pass * a.R + r) * a.Mp, *y2 = a.y2 + ((size_t)pass * a.R + r) * a.Np;
#ifdef FX_GPU
    __align__(16) __shared__ float inputs[PAIR_ROWS * PAIR_LD], between[PAIR_ROWS * PAIR_LD];
    __align__(16) __shared__ float weights[2][PAIR_WIDTH * PAIR_WIDTH];
    copy_block(inputs, PAIR_LD, x, a.Kp, PAIR_ROWS, rows - 1, first.n);
    copy_block(weights[0], PAIR_WIDTH, first.w, a.Mp, first.n, first.n, a.Mp);
    copy_block(weights[1], PAIR_WIDTH, second.w, a.Np, a.Mp, a.Mp, a.Np);
    first.w = weights[0], second.w = weights[1], first.ldw = second.ldw = PAIR_WIDTH;
    copy_async_wait();
    __syncthreads();
    first.apply(inputs, PAIR_LD, rows, y, between);
    __syncthreads();
    second.apply(between, PAIR_LD, rows, y2, nullptr);
#else
    first.apply(x, a.Kp, rows, y, nullptr);
    second.apply(y, a.Mp, rows, y2, nullptr);
#endif
}
