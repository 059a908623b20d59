// Register tiles of a matrix product: what one thread computes in linear_forward and linear_backward. No barriers, no
// shared memory; operands come straight from L1/L2, which at the sizes of a DQN trunk hold all of them.
//
// Tile shapes follow the target, the order of additions does not: every output of product() is one chain of fused
// multiply-adds in ascending order of the summed index, whatever the tile, so a row's result does not depend on how
// many rows are computed with it.
//   GPU   2 rows x 4 columns: a product of 64 x 64 outputs must spread over many threads, since latency is all it costs
//   host  4 rows x 16 columns: 8 accumulators in AVX registers cover the latency of the multiply-add
#pragma once
#include "lib/lanes.h"

namespace fx {

#ifdef FX_GPU
constexpr int TILE_ROWS = 2, TILE_COLS = 1;  // columns in lanes
constexpr int AHEAD = 16;                    // steps whose operands are loaded before the first is used
constexpr int DOT_ROWS = 2, DOT_COLS = 4;    // tile of dots()
constexpr int DOT_PARTS = 16;                // threads that share one dot product
#else
constexpr int TILE_ROWS = 4, TILE_COLS = 2;
constexpr int AHEAD = 1;
constexpr int DOT_ROWS = 4, DOT_COLS = 2;
constexpr int DOT_PARTS = 1;
#endif
constexpr int TILE_WIDTH = TILE_COLS * LANES;

// Left operand read along its rows: a(i, t) = p[i*ld + t]. Rows start on 16 bytes.
struct along_rows {
    const float *p;
    int ld;
    template <int N, int ROWS>
    FX_DEVICE void load(float (&to)[N][ROWS], int t) const {
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            constexpr int WIDE = N / 4 * 4;
            FX_UNROLL
            for (int u = 0; u < WIDE; u += 4) {
                float4 q = *reinterpret_cast<const float4 *>(p + (size_t)i * ld + t + u);
                to[u][i] = q.x, to[u + 1][i] = q.y, to[u + 2][i] = q.z, to[u + 3][i] = q.w;
            }
            FX_UNROLL
            for (int u = WIDE; u < N; ++u) to[u][i] = p[(size_t)i * ld + t + u];
        }
    }
};

// Left operand read along its columns, the transposed product: a(i, t) = p[t*ld + i].
struct along_columns {
    const float *p;
    int ld;
    template <int N, int ROWS>
    FX_DEVICE void load(float (&to)[N][ROWS], int t) const {
        FX_UNROLL
        for (int u = 0; u < N; ++u) {
            FX_UNROLL
            for (int i = 0; i < ROWS; ++i) to[u][i] = p[(size_t)(t + u) * ld + i];
        }
    }
};

template <int STEPS, int ROWS, int COLS, class A>
FX_DEVICE void product_steps(lanes (&acc)[ROWS][COLS], int t, const A &a, const float *b, int ldb) {
    float av[STEPS][ROWS];
    lanes bv[STEPS][COLS];
    a.load(av, t);
    FX_UNROLL
    for (int u = 0; u < STEPS; ++u) {
        FX_UNROLL
        for (int c = 0; c < COLS; ++c) bv[u][c] = load_lanes(b + (size_t)(t + u) * ldb + c * LANES);
    }
    FX_UNROLL
    for (int u = 0; u < STEPS; ++u) {
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int c = 0; c < COLS; ++c) acc[i][c] = fma(splat(av[u][i]), bv[u][c], acc[i][c]);
        }
    }
}

// acc[i][c] += sum over t < n of a(i, t) * b[t*ldb + c]
template <int ROWS, int COLS, class A>
FX_DEVICE void product(lanes (&acc)[ROWS][COLS], int n, const A &a, const float *b, int ldb) {
    int t = 0;
    for (; t + AHEAD <= n; t += AHEAD) product_steps<AHEAD>(acc, t, a, b, ldb);
    if (AHEAD > 4)
        for (; t + 4 <= n; t += 4) product_steps<4>(acc, t, a, b, ldb);
    if (AHEAD > 1)
        for (; t < n; ++t) product_steps<1>(acc, t, a, b, ldb);
}

// out[i*ldo + k] = part `part` of the dot product of row i of x with row k of w, both n long (a multiple of LANES).
// Lane l of part p adds the elements (p + DOT_PARTS*j)*LANES + l in ascending j; then the lanes are added as a tree.
template <int ROWS, int COLS>
FX_DEVICE void dots(float *out, int ldo, int part, int n, const float *x, int ldx, const float *w, int ldw) {
    lanes acc[ROWS][COLS];
    FX_UNROLL
    for (int i = 0; i < ROWS; ++i) {
        FX_UNROLL
        for (int k = 0; k < COLS; ++k) acc[i][k] = splat(0.0f);
    }
#ifdef FX_GPU
#pragma unroll 4
#endif
    for (int q = part * LANES; q < n; q += DOT_PARTS * LANES) {
        lanes xv[ROWS], wv[COLS];
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) xv[i] = load_lanes(x + (size_t)i * ldx + q);
        FX_UNROLL
        for (int k = 0; k < COLS; ++k) wv[k] = load_lanes(w + (size_t)k * ldw + q);
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int k = 0; k < COLS; ++k) acc[i][k] = fma(xv[i], wv[k], acc[i][k]);
        }
    }
    FX_UNROLL
    for (int i = 0; i < ROWS; ++i) {
        FX_UNROLL
        for (int k = 0; k < COLS; ++k) out[i * ldo + k] = sum(acc[i][k]);
    }
}

}  // namespace fx
