// A warp a row, for FX_KERNEL_ANYBLOCK kernels (see kernel.h): many short reductions at once, without a barrier each.
//
//     FX_ROWS(r, rows) {                              // on a GPU each warp takes every (blockDim / 32)-th row
//         float top = fx::lane_max(n, [&](int i) { return x[r * n + i]; });
//         FX_LANES(i, n) y[r * n + i] = x[r * n + i] - top;
//     }
//     __syncthreads();                                // before another warp may read y
//
// On the host the one thread takes every row and the loops over the lanes become vector code. The order of the additions
// depends on n alone. Maxima and minima keep NaN.
#pragma once
#include "lib/kernel.h"
#include "lib/reduce.h"

#ifdef FX_GPU
#define FX_ROWS(r, n) for (int r = (int)threadIdx.x >> 5; r < (int)(n); r += (int)blockDim.x >> 5)
#define FX_LANES(i, n) for (int i = (int)threadIdx.x & 31; i < (int)(n); i += 32)
#define FX_LANE_0 if ((threadIdx.x & 31) == 0)
#else
#define FX_ROWS(r, n) for (int r = 0; r < (int)(n); ++r)
#define FX_LANES(i, n) for (int i = 0; i < (int)(n); ++i)
#define FX_LANE_0
#endif

namespace fx {

#ifdef FX_GPU
constexpr int TILE = 1;  // adjacent elements that one thread owns in a tiled loop
#else
constexpr int TILE = 8;  // one vector register
#endif

struct op_max_number {
    FX_DEVICE float operator()(float a, float b) const { return b > a ? b : a; }  // a NaN in b is left out
};

template <class T, class Op, class F>
FX_DEVICE T lane_reduce(int n, T identity, Op op, F f) {
#ifdef FX_GPU
    T v = identity;
    FX_LANES(i, n) v = op(v, f(i));
    return warp_combine(v, op);
#else
    return block_reduce(n, identity, op, f);
#endif
}

template <class F>
FX_DEVICE float lane_sum(int n, F f) {
    return lane_reduce(n, 0.0f, op_sum(), f);
}
template <class F>
FX_DEVICE float lane_max(int n, F f) {
    return lane_reduce(n, -INFINITY, op_max(), f);
}
// Largest of the values that are numbers (-infinity when none is): one vector instruction, for where a NaN is found anyway.
template <class F>
FX_DEVICE float lane_max_number(int n, F f) {
    return lane_reduce(n, -INFINITY, op_max_number(), f);
}
template <class F>
FX_DEVICE indexed lane_argmax(int n, F f) {
    return lane_reduce(n, indexed{-INFINITY, 0x7fffffff}, op_argmax(), [&](int i) { return indexed{f(i), i}; });
}

// Sums over a warp's lanes of M values each, which share the latency of their shuffles.
template <int M>
FX_DEVICE void warp_sums(float (&v)[M]) {
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1)
#pragma unroll
        for (int k = 0; k < M; ++k) v[k] += __shfl_xor_sync(0xffffffffu, v[k], lane);
}

// sum[k] = sum_i f(i, k), i < n, for k < count <= M. A GPU evaluates f up to M, so that k is known when it is compiled.
template <int M, class F>
FX_DEVICE void lane_sums(int n, [[maybe_unused]] int count, float (&sum)[M], F f) {
#ifdef FX_GPU
#pragma unroll
    for (int k = 0; k < M; ++k) sum[k] = 0.0f;
    FX_LANES(i, n) {
#pragma unroll
        for (int k = 0; k < M; ++k) sum[k] += f(i, k);
    }
    warp_sums(sum);
#else
    for (int k = 0; k < count; ++k) sum[k] = lane_sum(n, [&](int i) { return f(i, k); });
#endif
}

// Prefix sums over a row: to(i, f(i), sum of f(k), k < i) for each i < n, by the lane of i.
template <class F, class G>
FX_DEVICE void lane_scan(int n, F f, G to) {
    float before = 0.0f;
#ifdef FX_GPU
    const int lane = (int)threadIdx.x & 31;
    for (int base = 0; base < n; base += 32) {
        const int i = base + lane;
        const float v = i < n ? f(i) : 0.0f;
        float sum = v;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const float s = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += s;
        }
        const float s = __shfl_up_sync(0xffffffffu, sum, 1);
        if (i < n) to(i, v, before + (lane ? s : 0.0f));
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
#else
    for (int i = 0; i < n; ++i) {
        const float v = f(i);
        to(i, v, before);
        before += v;
    }
#endif
}

// What a row's lanes have added up each, together.
FX_DEVICE float lane_total(float v) {
#ifdef FX_GPU
    return warp_combine(v, op_sum());
#else
    return v;
#endif
}

// Softmax of the row x(i), i < n, in two passes (largest value, then sums): sum = sum_i exp(x_i - top), and the
// expectation of value(i) under it. A NaN anywhere makes both NaN (top leaves it out, the sum does not).
struct softmax_row {
    float top, sum, expectation;
};
template <class X, class V>
FX_DEVICE softmax_row lane_softmax(int n, X x, V value) {
#ifdef FX_GPU
    float top = lane_max_number(n, x), sum = 0.0f, weighted = 0.0f;
    FX_LANES(i, n) {
        float e = expf(x(i) - top);
        sum += e;
        weighted += e * value(i);
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
        weighted += __shfl_xor_sync(0xffffffffu, weighted, lane);
    }
    return {top, sum, weighted / sum};
#else
    float top = lane_max_number(n, x), s[8] = {}, w[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) {
            float e = expf(x(i + j) - top);
            s[j] += e;
            w[j] += e * value(i + j);
        }
    for (int j = 0; i + j < n; ++j) {
        float e = expf(x(i + j) - top);
        s[j] += e;
        w[j] += e * value(i + j);
    }
    float sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    float weighted = ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
    return {top, sum, weighted / sum};
#endif
}

}  // namespace fx
