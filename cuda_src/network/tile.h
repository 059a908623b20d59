// Register tiles of a matrix product: what one thread computes in linear_forward and linear_backward.
//
// Tile shapes follow the target, the order of additions does not: every output of product() is one chain of fused
// multiply-adds in ascending order of the summed index, whatever the tile, so a row's result does not depend on how
// many rows are computed with it.
//   GPU   2 rows x 4 columns a thread: a product of 64 x 64 outputs must spread over many threads, since latency is all
//         it costs; 4 x 4 or 8 x 4 where there are enough outputs (BIG_ROWS): a multiply-add then needs half or a third of the
//         shared memory traffic. Operands of the block's region pass through shared memory (stage.h): read straight from L2, the
//         compiler keeps only six loads in flight to save registers.
//   host  4 rows x 16 columns, operands read in place: 8 accumulators in AVX registers cover a multiply-add's latency.
#pragma once
#include "lib/lanes.h"

namespace fx {

#ifdef FX_GPU
constexpr int TILE_ROWS = 2, TILE_COLS = 1;  // columns in lanes
constexpr int STEPS = 16;                    // of the summed index, unrolled
constexpr int BIG_ROWS = 4,
              BIG_STEPS = 4;  // tile of blocks of LINEAR_BIG_ROWS rows; twice as high in those of twice as many
constexpr int DOT_ROWS = 2, DOT_COLS = 4;  // tile of dots()
#else
constexpr int TILE_ROWS = 4, TILE_COLS = 2;
constexpr int STEPS = 1;
constexpr int DOT_ROWS = 4, DOT_COLS = 2;
#endif
constexpr int TILE_WIDTH = TILE_COLS * LANES;

template <int ROWS>
using tile = lanes[ROWS][TILE_COLS];

template <int ROWS>
FX_DEVICE void clear(tile<ROWS> &acc) {
    FX_UNROLL
    for (int i = 0; i < ROWS; ++i) {
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j) acc[i][j] = splat(0.0f);
    }
}

// Left operand read along its rows: a(i, t) = p[i*ld + t]. Rows start on 16 bytes.
struct along_rows {
    const float *p;
    int ld;
    template <int N, int ROWS>
    FX_DEVICE void load(float (&to)[N][ROWS], int t) const {
        constexpr int WIDE = N / 4 * 4;
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int u = 0; u < WIDE; u += 4) {
                float4 q = *reinterpret_cast<const float4 *>(p + (size_t)i * ld + t + u);
                to[u][i] = q.x, to[u + 1][i] = q.y, to[u + 2][i] = q.z, to[u + 3][i] = q.w;
            }
            FX_UNROLL
            for (int u = WIDE; u < N; ++u) to[u][i] = p[(size_t)i * ld + t + u];
        }
    }
    FX_DEVICE along_rows row(int i) const { return {p + (size_t)i * ld, ld}; }
};

// Left operand read along its columns, the transposed product: a(i, t) = p[t*ld + i].
struct along_columns {
    const float *p;
    int ld;
    template <int N, int ROWS>
    FX_DEVICE void load(float (&to)[N][ROWS], int t) const {
        FX_UNROLL
        for (int u = 0; u < N; ++u) {
            const float *q = p + (size_t)(t + u) * ld;
            if (ROWS % 4 == 0 && LANES == 4) {  // a GPU's big tile starts on 16 bytes
                FX_UNROLL
                for (int i = 0; i + 3 < ROWS; i += 4) {
                    float4 v = *reinterpret_cast<const float4 *>(q + i);
                    to[u][i] = v.x, to[u][i + 1] = v.y, to[u][i + 2] = v.z, to[u][i + 3] = v.w;
                }
            } else {
                FX_UNROLL
                for (int i = 0; i < ROWS; ++i) to[u][i] = q[i];
            }
        }
    }
    FX_DEVICE along_columns row(int i) const { return {p + i, ld}; }
};

// Left operand of ones: the product is the column sums of the right one.
struct ones {
    template <int N, int ROWS>
    FX_DEVICE void load(float (&to)[N][ROWS], int) const {
        FX_UNROLL
        for (int u = 0; u < N; ++u) {
            FX_UNROLL
            for (int i = 0; i < ROWS; ++i) to[u][i] = 1.0f;
        }
    }
    FX_DEVICE ones row(int) const { return {}; }
};

template <int N, int ROWS, class A>
FX_DEVICE void product_steps(tile<ROWS> &acc, int t, const A &a, const float *b, int ldb) {
    float av[N][ROWS];
    a.load(av, t);
    FX_UNROLL
    for (int u = 0; u < N; ++u) {
        lanes bv[TILE_COLS];
        FX_UNROLL
        for (int j = 0; j < TILE_COLS; ++j) bv[j] = load_lanes(b + (size_t)(t + u) * ldb + j * LANES);
        FX_UNROLL
        for (int i = 0; i < ROWS; ++i) {
            FX_UNROLL
            for (int j = 0; j < TILE_COLS; ++j) acc[i][j] = fma(splat(av[u][i]), bv[j], acc[i][j]);
        }
    }
}

// acc[i][j] += sum over t < n of a(i, t) * b[t*ldb + j]
template <int ROWS, class A>
FX_DEVICE void product(tile<ROWS> &acc, int n, const A &a, const float *b, int ldb) {
    int t = 0;
    for (; t + STEPS <= n; t += STEPS) product_steps<STEPS, ROWS>(acc, t, a, b, ldb);
    if (STEPS > 1)
        for (; t < n; ++t) product_steps<1, ROWS>(acc, t, a, b, ldb);
}

// acc[i][k] += part `part` of `parts` of the dot product of row i of x with row k of w, both n long (a multiple of
// LANES): lane l adds the elements (part + parts*j)*LANES + l in ascending j.
template <int ROWS, int COLS>
FX_DEVICE void dots(lanes (&acc)[ROWS][COLS], int part, int parts, int n, const float *x, int ldx, const float *w,
                 int ldw) {
    for (int q = part * LANES; q < n; q += parts * LANES) {
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
}

}  // namespace fx
