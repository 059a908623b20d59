// One pass over a gradient (R, Np) between two products of the backward pass, for gradient_rows and residual_gradient: what other heads
// add, a factor a row, the derivative of ReLU, the rounding to bf16, and the column sums that db is made of.
//
// Order of additions: the rows of a split in GROUPS interleaved runs, ascending, then the runs ascending.
#pragma once
#include "lib/bf16.h"
#include "lib/kernel.h"

namespace {

constexpr int GROUPS = 16;
constexpr int BATCH = 4;  // rows a thread has in flight: y may be x, so the compiler moves no load before a store

template <class T, class U>
FX_DEVICE void rows_of(const T *x, const T *h, const float *more, int heads, U *y, float *part, int rows, int columns,
                    int splits, const float *scale = nullptr, float *carry = nullptr) {
    using namespace fx;
    __shared__ float sums[GROUPS * GRADIENT_COLS];
    const int c = (int)blockIdx.x * GRADIENT_COLS, vectors = min(GRADIENT_COLS, columns - c) / LANES;
    const int chunk = ceil_div(rows, splits), begin = min((int)blockIdx.y * chunk, rows),
              end = min(begin + chunk, rows);
    FX_FOR(i, GROUPS * vectors) {
        const int group = i / vectors, column = i % vectors * LANES;
        lanes s = splat(0.0f);
        const size_t step = (size_t)GROUPS * columns;
        size_t at = (size_t)(begin + group) * columns + c + column;
        const auto sign_at = [&](size_t i) { return h ? load_lanes(h + i) : splat(1.0f); };
        const auto finish = [&](lanes v, lanes sign, size_t i, int r) {
            const float *from = heads ? more + i : more;
#pragma unroll 1  // unrolled in five copies it took 96 registers, and so half of a multiprocessor's warps
            for (int m = 0; m < heads; ++m, from += (size_t)rows * columns) v = v + load_lanes(from);
            if (carry) store_lanes(carry + i, v);
            if (scale) v = splat(scale[r]) * v;
            v = relu_gradient(v, sign);
            if (y) store_lanes(y + i, v);
            s = s + v;
        };
        int r = begin + group;
        for (; r + (BATCH - 1) * GROUPS < end; r += BATCH * GROUPS, at += BATCH * step) {
            lanes v[BATCH], sign[BATCH];
            FX_UNROLL
            for (int u = 0; u < BATCH; ++u) v[u] = load_lanes(x + at + u * step), sign[u] = sign_at(at + u * step);
            FX_UNROLL
            for (int u = 0; u < BATCH; ++u) finish(v[u], sign[u], at + u * step, r + u * GROUPS);
        }
#pragma unroll 1
        for (; r < end; r += GROUPS, at += step) finish(load_lanes(x + at), sign_at(at), at, r);
        store_lanes(sums + group * GRADIENT_COLS + column, s);
    }
    if (!part) return;
    __syncthreads();
    FX_FOR(q, vectors) {
        lanes s = load_lanes(sums + q * LANES);
        for (int group = 1; group < GROUPS; ++group) s = s + load_lanes(sums + group * GRADIENT_COLS + q * LANES);
        store_lanes(part + (size_t)blockIdx.y * columns + c + q * LANES, s);
    }
}

}  // namespace
