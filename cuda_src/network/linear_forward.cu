// linear_forward: y = act(x W + b) for up to three passes at once (grid z): online on s, online on s', target on s'.
//
// Launch: grid (ceil(Np / LINEAR_BLOCK_COLS), ceil(R / LINEAR_BLOCK_ROWS), passes), any block; 128 threads fill a GPU's.
// Each output is bias + sum_k x[k] w[k], k ascending, one fused multiply-add a step, on both targets.
// Pads: rows K.. of W are not read, columns of pads come out as zero because W and b hold zeros there.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/network.h"
#include "network/tile.h"

namespace {

struct pass {
    const float *x, *w, *bias;
    float *y;
};

template <int ROWS>
FX_DEVICE void forward_tile(const linear_forward_args &a, const pass &p, int r, int c) {
    using namespace fx;
    lanes acc[ROWS][TILE_COLS];
    FX_UNROLL
    for (int j = 0; j < TILE_COLS; ++j) {
        lanes b = load_lanes(p.bias + c + j * LANES);
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) acc[i][j] = b;
    }
    int k = ceil_div(a.K, 16) * 16;  // <= Kp; whole groups, so that the GPU's loads have no tail
    product(acc, k, along_rows{p.x + (size_t)r * a.Kp, a.Kp}, p.w + c, a.Np);
    FX_UNROLL
    for (int i = 0; i < ROWS; ++i) {
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j)
            store_lanes(p.y + (size_t)(r + i) * a.Np + c + j * LANES, a.relu ? relu(acc[i][j]) : acc[i][j]);
    }
}

}  // namespace

FX_KERNEL_ANYBLOCK(linear_forward) {
    using namespace fx;
    int z = (int)blockIdx.z;
    pass p{z == 0 ? a.x0 : (z == 1 ? a.x1 : a.x2), z < 2 ? a.w : a.w_target, z < 2 ? a.bias : a.bias_target,
           a.y + (size_t)z * a.R * a.Np};
    int r0 = (int)blockIdx.y * LINEAR_BLOCK_ROWS, c0 = (int)blockIdx.x * LINEAR_BLOCK_COLS;
    int rows = min(LINEAR_BLOCK_ROWS, a.R - r0);
    int col_tiles = min(LINEAR_BLOCK_COLS, a.Np - c0) / TILE_WIDTH;
    FX_FOR(t, ceil_div(rows, TILE_ROWS) * col_tiles) {
        int r = r0 + t / col_tiles * TILE_ROWS, c = c0 + t % col_tiles * TILE_WIDTH;
        if (r + TILE_ROWS <= a.R)
            forward_tile<TILE_ROWS>(a, p, r, c);
        else
            for (; r < a.R; ++r) forward_tile<1>(a, p, r, c);
    }
}
