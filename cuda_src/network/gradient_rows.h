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
        const auto place = [&](int r) { return (size_t)min(r, end - 1) * columns + c + column; };
        for (int r = begin + group; r < end; r += BATCH * GROUPS) {
            lanes v[BATCH], sign[BATCH];
            FX_UNROLL
            for (int u = 0; u < BATCH; ++u) {
                v[u] = load_lanes(x + place(r + u * GROUPS));
                sign[u] = h ? load_lanes(h + place(r + u * GROUPS)) : splat(1.0f);
            }
            FX_UNROLL
            for (int u = 0; u < BATCH; ++u) {
                if (r + u * GROUPS >= end) break;
                const size_t at = place(r + u * GROUPS);
                for (int m = 0; m < heads; ++m) v[u] = v[u] + load_lanes(more + (size_t)m * rows * columns + at);
                if (carry) store_lanes(carry + at, v[u]);
                if (scale) v[u] = splat(scale[r + u * GROUPS]) * v[u];
                v[u] = relu_gradient(v[u], sign[u]);
                if (y) store_lanes(y + at, v[u]);
                s = s + v[u];
            }
        }
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
