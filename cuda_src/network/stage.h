// A block's products. On the GPU their operands are staged through shared memory, STAGE_STEPS of the summed index at a
// time: all loads of a stage are in flight at once (cp.async), so a network of 64 units pays one trip to L2, not ten.
// The host reads them in place.
#pragma once
#include "lib/copy_async.h"
#include "network/tile.h"

namespace fx {

#ifdef FX_GPU

constexpr int STAGE_STEPS = 64;
constexpr int STAGE_LD = STAGE_STEPS + 4;  // rows of a, so that two rows fall into different banks
constexpr int STAGE_ROWS = 32;
constexpr int BIG_STAGE_STEPS = 32;  // of a big tile: two stages, one filled while the other is multiplied
constexpr int BIG_STAGE_LD = BIG_STAGE_STEPS + 4;

union stage {
    struct {
        float a[STAGE_ROWS * STAGE_LD];
        float b[STAGE_STEPS * LINEAR_MAX_COLS];
    };
    struct {
        float a[LINEAR_MAX_ROWS * BIG_STAGE_LD];
        float b[BIG_STAGE_STEPS * LINEAR_MAX_COLS];
    } big[2];
};

// to[r*ldt + c] = from[min(r, last)*ld + c] for r < height, c < width (a multiple of 4, at most 4*blockDim.x).
FX_DEVICE void copy_block(float *to, int ldt, const float *from, int ld, int height, int last, int width) {
    int across = width >> 2, per = (int)blockDim.x / across;
    int q = (int)threadIdx.x % across, r = (int)threadIdx.x / across;
    if (r >= per) return;
#pragma unroll 4
    for (; r < height; r += per) copy_async(to + r * ldt + 4 * q, from + (size_t)min(r, last) * ld + 4 * q);
}

// The steps [t, t+steps) of `rows` rows of a left operand, of which those beyond `last` repeat it.
FX_DEVICE along_rows stage_left(const along_rows &a, float *to, int ld, int t, int steps, int rows, int last) {
    copy_block(to, ld, a.p + t, a.ld, rows, last, steps);
    return {to, ld};
}
FX_DEVICE along_columns stage_left(const along_columns &a, float *to, int, int t, int steps, int rows, int) {
    copy_block(to, rows, a.p + (size_t)t * a.ld, a.ld, steps, steps, rows);
    return {to, rows};
}
FX_DEVICE ones stage_left(const ones &a, float *, int, int, int, int, int) { return a; }

// product() of the tile at (row, column) of the block's region; every thread of the block calls it. Rows of the region
// beyond `last` repeat it; `works` is false for threads without a tile.
template <int ROWS, class A>
FX_DEVICE void block_product(tile<ROWS> &acc, int n, const A &a, const float *b, int ldb, stage &s, int rows, int last,
                          int cols, int row, int column, bool works) {
    for (int t = 0; t < n; t += STAGE_STEPS) {
        int steps = min(STAGE_STEPS, n - t);
        if (t > 0) __syncthreads();
        A left = stage_left(a, s.a, STAGE_LD, t, steps, rows, last);
        copy_block(s.b, LINEAR_MAX_COLS, b + (size_t)t * ldb, ldb, steps, steps, cols);
        copy_async_wait();
        __syncthreads();
        if (works) product<ROWS>(acc, steps, left.row(row), s.b + column, LINEAR_MAX_COLS);
    }
}

// Copies a stage of a big tile: fixed strides, so that only shifts find a thread's place, and loops of fixed length.
// rows x BIG_STAGE_STEPS along the rows of a left operand:
FX_DEVICE void fill_left(const along_rows &a, float *to, int t, int steps, int, int last) {
    constexpr int ACROSS = BIG_STAGE_STEPS / 4;
#pragma unroll 4
    for (int e = (int)threadIdx.x; e < LINEAR_BIG_ROWS * ACROSS; e += (int)blockDim.x) {
        const int r = e / ACROSS, q = e % ACROSS * 4;
        if (q < steps) copy_async(to + r * BIG_STAGE_LD + q, a.p + (size_t)min(r, last) * a.ld + t + q);
    }
}
// BIG_STAGE_STEPS x width, of either operand:
FX_DEVICE void fill_steps(float *to, const float *from, int ld, int steps, int width) {
    constexpr int ACROSS = LINEAR_MAX_COLS / 4;
#pragma unroll 4
    for (int e = (int)threadIdx.x; e < BIG_STAGE_STEPS * ACROSS; e += (int)blockDim.x) {
        const int r = e / ACROSS, q = e % ACROSS * 4;
        if (r < steps && q < width) copy_async(to + r * LINEAR_MAX_COLS + q, from + (size_t)r * ld + q);
    }
}
FX_DEVICE void fill_left(const along_columns &a, float *to, int t, int steps, int rows, int) {
    fill_steps(to, a.p + (size_t)t * a.ld, a.ld, steps, rows);
}
FX_DEVICE along_rows staged(const along_rows &, const float *at) { return {at, BIG_STAGE_LD}; }
FX_DEVICE along_columns staged(const along_columns &, const float *at) { return {at, LINEAR_MAX_COLS}; }
static_assert(LINEAR_BIG_ROWS == LINEAR_MAX_COLS, "fill_steps serves both operands");

// The same for big tiles, where it is throughput that counts: the next stage is on its way during the products.
template <class A>
FX_DEVICE void block_product_big(tile<BIG_ROWS> &acc, int n, const A &a, const float *b, int ldb, stage &s, int rows,
                              int last, int cols, int row, int column, bool works) {
    auto fill = [&](int t) {
        auto &to = s.big[t / BIG_STAGE_STEPS & 1];
        const int steps = min(BIG_STAGE_STEPS, n - t);
        fill_left(a, to.a, t, steps, rows, last);
        fill_steps(to.b, b + (size_t)t * ldb, ldb, steps, cols);
    };
    fill(0);
    for (int t = 0; t < n; t += BIG_STAGE_STEPS) {
        copy_async_wait();
        __syncthreads();  // this stage is there, and everyone is done with the other
        if (t + BIG_STAGE_STEPS < n) fill(t + BIG_STAGE_STEPS);
        auto &from = s.big[t / BIG_STAGE_STEPS & 1];
        if (!works) continue;
        const A left = staged(a, from.a).row(row);
        const int steps = min(BIG_STAGE_STEPS, n - t);
        int u = 0;
#pragma unroll 1
        for (; u + BIG_STEPS <= steps; u += BIG_STEPS)
            product_steps<BIG_STEPS, BIG_ROWS>(acc, u, left, from.b + column, LINEAR_MAX_COLS);
#pragma unroll 1
        for (; u < steps; ++u) product_steps<1, BIG_ROWS>(acc, u, left, from.b + column, LINEAR_MAX_COLS);
    }
}

// to[r*ldt + c] = from[min(r, last)*ld + c] for r < height, c < width: several short rows at once, long rows one by one.
FX_DEVICE void copy_rows(float *to, int ldt, const float *from, int ld, int height, int last, int width) {
    if (width <= 2 * (int)blockDim.x) return copy_block(to, ldt, from, ld, height, last, width);
    for (int r = 0; r < height; ++r)
        for (int q = 4 * (int)threadIdx.x; q < width; q += 4 * (int)blockDim.x)
            copy_async(to + r * ldt + q, from + (size_t)min(r, last) * ld + q);
}

struct dot_stage {
    float rows[9216];  // 12 rows of 768: the heads of the benchmark network in one go
};

// dots() of the tile at (row, column), columns `step` apart, of the block's region of rows x cols results; every thread
// calls it.
template <int ROWS, int COLS>
FX_DEVICE void block_dots(lanes (&acc)[ROWS][COLS], int part, int parts, int n, const float *x, const float *w, int ld,
                       dot_stage &s, int rows, int last, int cols, int row, int column, int step, bool works) {
    // With one part the threads of a warp read different rows: these start in different banks.
    int stride = parts * LANES, room = (int)(sizeof(s.rows) / sizeof(float)) / (rows + cols);
    int most = parts == 1 ? (room - LANES) / 32 * 32 : room / stride * stride;
    int ld_stage = parts == 1 ? most + LANES : most;
    for (int q = 0; q < n; q += most) {
        int width = min(most, n - q);
        float *sw = s.rows + rows * ld_stage;
        if (q > 0) __syncthreads();
        copy_rows(s.rows, ld_stage, x + q, ld, rows, last, width);
        copy_rows(sw, ld_stage, w + q, ld, cols, cols, width);
        copy_async_wait();
        __syncthreads();
        if (works)
            dots(acc, part, parts, width, s.rows + row * ld_stage, ld_stage, sw + column * ld_stage, step * ld_stage);
    }
}

#else

struct stage {};
struct dot_stage {};

template <int ROWS, int COLS>
FX_DEVICE void block_dots(lanes (&acc)[ROWS][COLS], int part, int parts, int n, const float *x, const float *w, int ld,
                       dot_stage &, int, int, int, int row, int column, int step, bool works) {
    if (works) dots(acc, part, parts, n, x + (size_t)row * ld, ld, w + (size_t)column * ld, step * ld);
}

template <int ROWS, class A>
FX_DEVICE void block_product(tile<ROWS> &acc, int n, const A &a, const float *b, int ldb, stage &, int, int, int, int row,
                          int column, bool works) {
    if (works) product<ROWS>(acc, n, a.row(row), b + column, ldb);
}

#endif
}  // namespace fx
