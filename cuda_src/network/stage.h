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
constexpr int STAGE_ROWS = LINEAR_BIG_ROWS / 2;
constexpr int BIG_THREADS = 128;     // of a block of big tiles, 8 of them over each other and 16 side by side
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

// What a thread copies to the stages of an operand of big tiles: its places are found once, and then move on by a stage.
// HEIGHT rows along which the summed index runs, of which those beyond `last` repeat it:
template <int HEIGHT>
struct row_copies {
    static constexpr int ACROSS = BIG_STAGE_STEPS / 4, DOWN = BIG_THREADS / ACROSS, COUNT = HEIGHT / DOWN;
    static constexpr int LD = BIG_STAGE_LD;
    const float *from;
    int at[COUNT], r, q;

    FX_DEVICE row_copies(const along_rows &a, int, int last)
        : from(a.p), r((int)threadIdx.x / ACROSS), q((int)threadIdx.x % ACROSS * 4) {
        FX_UNROLL
        for (int i = 0; i < COUNT; ++i) at[i] = min(r + i * DOWN, last) * a.ld + q;
    }
    FX_DEVICE void next(float *to, int steps) {
        FX_UNROLL
        for (int i = 0; i < COUNT; ++i)
            if (q < steps) copy_async(to + (r + i * DOWN) * LD + q, from + at[i]);
        from += BIG_STAGE_STEPS;
    }
};
// Rows of `width` floats, WIDTH at most, a row a step:
template <int WIDTH>
struct step_copies {
    static constexpr int ACROSS = WIDTH / 4, DOWN = BIG_THREADS / ACROSS, COUNT = BIG_STAGE_STEPS / DOWN;
    static constexpr int LD = LINEAR_MAX_COLS;
    const float *from;
    int ld, r, q;
    bool inside;

    FX_DEVICE step_copies(const along_columns &a, int width, int)
        : ld(a.ld), r((int)threadIdx.x / ACROSS), q((int)threadIdx.x % ACROSS * 4), inside(q < width) {
        from = a.p + (size_t)r * ld + q;
    }
    FX_DEVICE void next(float *to, int steps) {
        FX_UNROLL
        for (int i = 0; i < COUNT; ++i)
            if (inside && r + i * DOWN < steps)
                copy_async(to + (r + i * DOWN) * LD + q, from + (size_t)(i * DOWN) * ld);
        from += (size_t)BIG_STAGE_STEPS * ld;
    }
};
template <int HEIGHT>
FX_DEVICE row_copies<HEIGHT> copies_of(const along_rows &a, int rows, int last) {
    return {a, rows, last};
}
template <int HEIGHT>
FX_DEVICE step_copies<HEIGHT> copies_of(const along_columns &a, int rows, int last) {
    return {a, rows, last};
}

// The same for big tiles, where it is throughput that counts: the next stage is on its way during the products.
template <int ROWS, class A>
FX_DEVICE void block_product_big(tile<ROWS> &acc, int n, const A &a, const float *b, int ldb, stage &s, int rows, int last,
                              int cols, int row, int column, bool works) {
    auto left = copies_of<8 * ROWS>(a, rows, last);
    auto right = copies_of<LINEAR_MAX_COLS>(along_columns{b, ldb}, cols, 0);
    left.next(s.big[0].a, min(BIG_STAGE_STEPS, n));
    right.next(s.big[0].b, min(BIG_STAGE_STEPS, n));
    for (int t = 0, other = 1; t < n; t += BIG_STAGE_STEPS, other ^= 1) {
        copy_async_wait();
        __syncthreads();  // this stage is there, and everyone is done with the other
        const int steps = min(BIG_STAGE_STEPS, n - t), more = min(BIG_STAGE_STEPS, n - t - steps);
        if (more > 0) left.next(s.big[other].a, more), right.next(s.big[other].b, more);
        if (!works) continue;
        const auto &from = s.big[other ^ 1];
        const A mine = A{from.a, left.LD}.row(row);
        int u = 0;
#pragma unroll 1
        for (; u + BIG_STEPS <= steps; u += BIG_STEPS)
            product_steps<BIG_STEPS, ROWS>(acc, u, mine, from.b + column, LINEAR_MAX_COLS);
#pragma unroll 1
        for (; u < steps; ++u) product_steps<1, ROWS>(acc, u, mine, from.b + column, LINEAR_MAX_COLS);
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
