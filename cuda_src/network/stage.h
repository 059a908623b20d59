// A block's products. On the GPU their operands are staged through shared memory, STAGE_STEPS of the summed index at a
// time: all loads of a stage are in flight at once (cp.async), so a network of 64 units pays one trip to L2, not ten.
// The host reads them in place.
#pragma once
#include "network/tile.h"

namespace fx {

#ifdef FX_GPU

constexpr int STAGE_STEPS = 64;
constexpr int STAGE_LD = STAGE_STEPS + 4;  // rows of a, so that two rows fall into different banks

struct stage {
    float a[LINEAR_MAX_ROWS * STAGE_LD];
    float b[STAGE_STEPS * LINEAR_MAX_COLS];
};

FX_DEVICE void copy_async(float *shared, const float *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global));
}
FX_DEVICE void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// to[r*ldt + c] = from[min(r, last)*ld + c] for r < height, c < width (a multiple of 4, at most 4*blockDim.x).
FX_DEVICE void copy_block(float *to, int ldt, const float *from, int ld, int height, int last, int width) {
    int across = width >> 2, per = (int)blockDim.x / across;
    int q = (int)threadIdx.x % across, r = (int)threadIdx.x / across;
    if (r >= per) return;
#pragma unroll 4
    for (; r < height; r += per) copy_async(to + r * ldt + 4 * q, from + (size_t)min(r, last) * ld + 4 * q);
}

// The steps [t, t+steps) of `rows` rows of a left operand, of which those beyond `last` repeat it.
FX_DEVICE along_rows stage_left(const along_rows &a, float *to, int t, int steps, int rows, int last) {
    copy_block(to, STAGE_LD, a.p + t, a.ld, rows, last, steps);
    return {to, STAGE_LD};
}
FX_DEVICE along_columns stage_left(const along_columns &a, float *to, int t, int steps, int rows, int) {
    copy_block(to, rows, a.p + (size_t)t * a.ld, a.ld, steps, steps, rows);
    return {to, rows};
}
FX_DEVICE ones stage_left(const ones &a, float *, int, int, int, int) { return a; }

// product() of the tile at (row, column) of the block's region; every thread of the block calls it. Rows of the region
// beyond `last` repeat it; `works` is false for threads without a tile.
template <int ROWS, class A>
FX_DEVICE void block_product(tile<ROWS> &acc, int n, const A &a, const float *b, int ldb, stage &s, int rows, int last,
                          int cols, int row, int column, bool works) {
    for (int t = 0; t < n; t += STAGE_STEPS) {
        int steps = min(STAGE_STEPS, n - t);
        if (t > 0) __syncthreads();
        A left = stage_left(a, s.a, t, steps, rows, last);
        copy_block(s.b, LINEAR_MAX_COLS, b + (size_t)t * ldb, ldb, steps, steps, cols);
        copy_async_wait();
        __syncthreads();
        if (works) product<ROWS>(acc, steps, left.row(row), s.b + column, LINEAR_MAX_COLS);
    }
}

// to[r*width + c] = from[min(r, last)*ld + c] for r < height, c < width: rows longer than the block.
FX_DEVICE void copy_long_rows(float *to, const float *from, int ld, int height, int last, int width) {
    for (int r = 0; r < height; ++r)
        for (int q = 4 * (int)threadIdx.x; q < width; q += 4 * (int)blockDim.x)
            copy_async(to + r * width + q, from + (size_t)min(r, last) * ld + q);
}

struct dot_stage {
    float rows[9216];  // 12 rows of 768: the heads of the benchmark network in one go
};

// dots() of the tile at (row, column) of the block's region of rows x cols results; every thread calls it.
template <int ROWS, int COLS>
FX_DEVICE void block_dots(lanes (&acc)[ROWS][COLS], int part, int parts, int n, const float *x, const float *w, int ld,
                       dot_stage &s, int rows, int last, int cols, int row, int column, bool works) {
    int stride = parts * LANES, most = (int)(sizeof(s.rows) / sizeof(float)) / (rows + cols) / stride * stride;
    for (int q = 0; q < n; q += most) {
        int width = min(most, n - q);
        float *sw = s.rows + rows * width;
        if (q > 0) __syncthreads();
        copy_long_rows(s.rows, x + q, ld, rows, last, width);
        copy_long_rows(sw, w + q, ld, cols, cols, width);
        copy_async_wait();
        __syncthreads();
        if (works) dots(acc, part, parts, width, s.rows + row * width, width, sw + column * width, width);
    }
}

#else

struct stage {};
struct dot_stage {};

template <int ROWS, int COLS>
FX_DEVICE void block_dots(lanes (&acc)[ROWS][COLS], int part, int parts, int n, const float *x, const float *w, int ld,
                       dot_stage &, int, int, int, int row, int column, bool works) {
    if (works) dots(acc, part, parts, n, x + (size_t)row * ld, ld, w + (size_t)column * ld, ld);
}

template <int ROWS, class A>
FX_DEVICE void block_product(tile<ROWS> &acc, int n, const A &a, const float *b, int ldb, stage &, int, int, int, int row,
                          int column, bool works) {
    if (works) product<ROWS>(acc, n, a.row(row), b + column, ldb);
}

#endif
}  // namespace fx
