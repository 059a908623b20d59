// All actions of one branch of a head by one warp, on a GPU: their distributions, and the gradient of a loss that every one of them
// has a share in. Lane l holds the atoms l, l + 32, ... of a distribution (lib/warp.h).
//
// Each exponential is made once: the probabilities go where the logits stood, or where the gradient will stand, and every element
// is read again by the lane that wrote it (those that read it as a lane without an atom have done so). What such a row costs is instructions: see loss/c51_row_gpu.h, whose ways these are.
#pragma once
#include "lib/branches.h"
#include "lib/copy_async.h"
#include "lib/dueling.h"
#include "lib/kernel.h"
#include "lib/warp.h"

namespace fx {

// Floats from global to shared memory, 16 bytes a copy, by all threads of the block. n: a multiple of 4; to be awaited.
FX_DEVICE void stage_floats(float *shared, const float *from, int n) {
#ifdef FX_GPU
    for (int i = 4 * (int)threadIdx.x; i < n; i += 4 * (int)blockDim.x) copy_async(shared + i, from + i);
#else
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) shared[i] = from[i];
#endif
}
FX_DEVICE void await_staged() {
#ifdef FX_GPU
    copy_async_wait();
#endif
    __syncthreads();
}

struct atom_values {
    float first, spacing;
    FX_DEVICE float operator()(int j) const { return first + spacing * (float)j; }
};

// V - mean_a A of n actions (Wang 2016); -infinity where a lane has no atom.
template <int A>
FX_DEVICE lane_atoms<A> lane_base(const lane_places<A> &place, const float *value, const float *advantage, int n, int N) {
    lane_atoms<A> sum = {};
#pragma unroll(A > 2 ? 1 : 4)
    for (int i = 0; i < n; ++i, advantage += N)
#pragma unroll
        for (int t = 0; t < A; ++t) sum.v[t] += advantage[place.at[t]];
    const float inverse = 1.0f / (float)n;
#pragma unroll
    for (int t = 0; t < A; ++t) sum.v[t] = lane_id() + 32 * t < N ? value[place.at[t]] - sum.v[t] * inverse : -INFINITY;
    return sum;
}

// Softmax of base + logit for each of n actions, four at a time: expected returns to q (n,), probabilities, where KEEP, to p (n, N),
// which may be logit itself. A NaN of an action stays in its q and p.
template <int A, bool KEEP>
FX_DEVICE void action_softmaxes(const lane_places<A> &place, const lane_atoms<A> &base, const float *logit, float *p,
                             float *q, int n, int N, const atom_values &z) {
    constexpr int TOGETHER = 4;
    const int lane = lane_id();
#pragma unroll 1
    for (int first = 0; first < n; first += TOGETHER) {
        float x[TOGETHER][A], top[TOGETHER], sums[2 * TOGETHER] = {};
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {  // beyond the last: the last again, whose results are left
            const float *from = logit + min(first + k, n - 1) * N;
            top[k] = -INFINITY;
#pragma unroll
            for (int t = 0; t < A; ++t) top[k] = fmaxf(top[k], x[k][t] = base.v[t] + from[place.at[t]]);
        }
        const float tops = gather_max(top) * LOG2_E;
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            const float largest = __shfl_sync(ALL_LANES, tops, 8 * k);
#pragma unroll
            for (int t = 0; t < A; ++t) {
                x[k][t] = exp2_fast(x[k][t] * LOG2_E - largest);
                sums[2 * k] += x[k][t], sums[2 * k + 1] += x[k][t] * z(lane + 32 * t);
            }
        }
        const float mine = gather_sums(sums), other = __shfl_xor_sync(ALL_LANES, mine, 4);
        const float inverse = 1.0f / (lane & 4 ? other : mine);  // of action first + lane / 8
        if ((lane & 7) == 0 && first + lane / 8 < n) q[first + lane / 8] = other * inverse;
        if constexpr (KEEP) {
            __syncwarp();  // lanes without an atom have read another's, which is overwritten
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) {
                const float scale = __shfl_sync(ALL_LANES, inverse, 8 * k);
                if (first + k >= n) continue;
#pragma unroll
                for (int t = 0; t < A; ++t)
                    if (lane + 32 * t < N) p[(first + k) * N + lane + 32 * t] = x[k][t] * scale;
            }
        }
    }
    __syncwarp();  // q is there for all lanes
}

// The gradient by the logits of action i is d_i = factor_i p_i (z - q_i), and for action `taken` (-1: none) `own` (N,) more; A's is
// d - mean d. p (n, N) may be out, where A's gradient goes. Returns the lane's share of the squares of d; total: sum over the actions.
template <int A>
FX_DEVICE float advantage_gradient(const float *p, float *out, const float *factor, const float *q, const float *own,
                                int taken, int n, int N, const atom_values &z, lane_atoms<A> &total) {
    const int lane = lane_id();
    auto gradient = [&](int i, int t) {
        const int j = lane + 32 * t;
        const float d = factor[i] * (z(j) - q[i]) * p[i * N + j];
        return i == taken ? d + own[j] : d;
    };
    total = {};
#pragma unroll(A > 2 ? 1 : 2)
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int t = 0; t < A; ++t)
            if (lane + 32 * t < N) total.v[t] += gradient(i, t);
    const float inverse = 1.0f / (float)n;
    float squares = 0.0f;
#pragma unroll(A > 2 ? 1 : 2)
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int t = 0; t < A; ++t)
            if (lane + 32 * t < N) {
                const float d = gradient(i, t);
                squares += d * d;
                out[i * N + lane + 32 * t] = d - total.v[t] * inverse;
            }
    return squares;
}

// V's gradient from the sums over the actions of each branch, (K, N) in shared memory, and the row's pads, by all threads.
FX_DEVICE void sum_over_branches(float *row, const float *total, int K, int S, int N, int Np) {
    for (int j = (int)threadIdx.x; j < N; j += (int)blockDim.x) {
        float sum = 0.0f;
        for (int b = 0; b < K; ++b) sum += total[b * N + j];
        row[j] = sum;
    }
    for (int j = (1 + S) * N + (int)threadIdx.x; j < Np; j += (int)blockDim.x) row[j] = 0.0f;
}

}  // namespace fx
