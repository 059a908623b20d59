// The loss term of the regulator (docs/step/epoch.md): the entropy of the taken actions' distributions, kept in a range. Bounded:
// the entropy over log N lies in [0, 1], so the loss of a row is at most weight * sum_b branch_scale.
//
//   h = -sum_j p_j log p_j / log N      loss_i = weight * branch_scale * sum_b max(0, low - h)^2 + max(0, h - high)^2
//   dh/dx_j = -p_j (log p_j + h log N) / log N
//
// Launch: grid (B,), any block of at most HEAD_THREADS (a warp a branch); dynamic shared memory: children/row_launch.py.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "abi/epoch.h"
#include "lib/dueling.h"
#include "loss/head_gradient.h"
#ifdef FX_GPU
#include "heads/actions_gpu.h"
#endif

namespace {

#ifdef FX_GPU
// Branch b by one warp: its loss, and the gradient of its advantages; d of the taken action to shared memory, for V.
template <int A>
FX_DEVICE void branch_gradient(const entropy_gradient_args &a, const float *row, float *d, float *loss, float *squares,
                            int b) {
    using namespace fx;
    const int N = a.N, n = branch_size(a.branch_sizes, b), first = branch_first(a.branch_sizes, b), lane = lane_id();
    const int taken = branch_action(a.branch_sizes, a.K, a.action[blockIdx.x], b);
    const float scale = a.weight[0] * a.branch_scale / (float)a.B, inverse_log = 1.0f / __logf((float)N);
    const lane_places<A> place(N);
    const float *logit = row + (1 + first) * N, *chosen = logit + taken * N;
    const lane_atoms<A> base = lane_base(place, row, logit, n, N);

    float log_p[A], p[A], top = -INFINITY, sum = 0.0f, nats = 0.0f, norm2 = 0.0f;
#pragma unroll
    for (int t = 0; t < A; ++t) top = fmaxf(top, log_p[t] = base.v[t] + chosen[place.at[t]]);
    top = warp_max(top);
#pragma unroll
    for (int t = 0; t < A; ++t) log_p[t] -= top, sum += exp2_fast(log_p[t] * LOG2_E);
    const float log_sum = __logf(warp_sum(sum));
#pragma unroll
    for (int t = 0; t < A; ++t) {  // without an atom: p = 0
        log_p[t] = lane + 32 * t < N ? log_p[t] - log_sum : 0.0f;
        p[t] = lane + 32 * t < N ? exp2_fast(log_p[t] * LOG2_E) : 0.0f;
        nats -= p[t] * log_p[t];
    }
    nats = warp_sum(nats);
    const float h = nats * inverse_log, below = h < a.low ? a.low - h : 0.0f, above = h > a.high ? h - a.high : 0.0f;
    const float slope = scale * 2.0f * (above - below) * inverse_log, inverse = 1.0f / (float)n;
#pragma unroll
    for (int t = 0; t < A; ++t) {
        p[t] *= -slope * (log_p[t] + nats), norm2 += p[t] * p[t];
        if (lane + 32 * t < N) d[b * N + lane + 32 * t] = p[t];
    }
    norm2 = warp_sum(norm2);
    if (lane == 0) loss[b] = below * below + above * above, squares[b] = norm2;
    float *out = a.part + (int64_t)blockIdx.x * a.Np + (1 + first) * N;
#pragma unroll 1
    for (int k = 0; k < n; ++k, out += N) {
        const float factor = (k == taken ? 1.0f : 0.0f) - inverse;
#pragma unroll
        for (int t = 0; t < A; ++t)
            if (lane + 32 * t < N) out[lane + 32 * t] = factor * p[t];
    }
}

template <int A, bool STAGED>
FX_DEVICE void entropy_row(const entropy_gradient_args &a, float *shared) {
    const int K = a.K;
    const float *row = a.logits + (int64_t)blockIdx.x * a.Np;
    if (STAGED) {
        fx::stage_floats(shared, row, a.Np);
        row = shared, shared += a.Np;
        fx::await_staged();
    }
    float *d = shared, *loss = d + K * a.N, *squares = loss + K;
    for (int b = fx::warp_id(); b < K; b += fx::warps()) branch_gradient<A>(a, row, d, loss, squares, b);
    __syncthreads();
    fx::sum_over_branches(a.part + (int64_t)blockIdx.x * a.Np, d, K, a.S, a.N, a.Np);
    if (threadIdx.x == blockDim.x - 1) {
        float sum = 0.0f, norm2 = 0.0f;
        for (int b = 0; b < K; ++b) sum += loss[b], norm2 += squares[b];
        a.rows[blockIdx.x * AUX_COLUMNS + AUX_LOSS] = a.weight[0] * a.branch_scale * sum;
        a.rows[blockIdx.x * AUX_COLUMNS + AUX_NORM2] = norm2;
    }
}
#else
FX_DEVICE void entropy_row_host(const entropy_gradient_args &a, float *shared) {
    const int K = a.K, S = a.S, N = a.N, row = (int)blockIdx.x;
    const uint64_t sizes = a.branch_sizes;
    float *base = shared;                          // (K, N) V - mean_a A
    float *d = base + K * N;                       // (K, N) gradient by the taken actions' logits
    float *loss = d + K * N, *squares = loss + K;  // (K,)
    const int action = a.action[row];
    const float *value = a.logits + (int64_t)row * a.Np;
    const float weight = a.weight[0] * a.branch_scale, scale = weight / (float)a.B, inverse_log = 1.0f / logf((float)N);

    fx::dueling_base(value, sizes, K, N, base);
    FX_ROWS(b, K) {
        const int taken = fx::branch_first(sizes, b) + fx::branch_action(sizes, K, action, b);
        const float *v = base + b * N, *x = value + (1 + taken) * N;
        const auto logit = [&](int j) { return v[j] + x[j]; };
        const fx::softmax_row soft = fx::lane_softmax(N, logit, [](int) { return 0.0f; });
        const float log_sum = logf(soft.sum);
        const auto log_p = [&](int j) { return logit(j) - soft.top - log_sum; };
        const float nats = -fx::lane_sum(N, [&](int j) { return expf(log_p(j)) * log_p(j); }), h = nats * inverse_log;
        const float below = h < a.low ? a.low - h : 0.0f, above = h > a.high ? h - a.high : 0.0f;
        const float slope = scale * 2.0f * (above - below) * inverse_log;
        float *out = d + b * N;
        FX_LANES(j, N) out[j] = -slope * expf(log_p(j)) * (log_p(j) + nats);
        const float sum = fx::lane_sum(N, [&](int j) { return out[j] * out[j]; });  // of what the lane wrote itself
        FX_LANE_0 loss[b] = below * below + above * above, squares[b] = sum;
    }
    fx::write_head_gradient(a.part + (int64_t)row * a.Np, K, S, N, a.Np, sizes, action,
                            [&](int b, int j) { return d[b * N + j]; });
    FX_FOR(only, 1) {
        float sum = 0.0f, square = 0.0f;
        for (int b = 0; b < K; ++b) sum += loss[b], square += squares[b];
        a.rows[row * AUX_COLUMNS + AUX_LOSS] = weight * sum;
        a.rows[row * AUX_COLUMNS + AUX_NORM2] = square;
    }
}
#endif

}  // namespace

#ifdef FX_GPU
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    entropy_gradient(const __grid_constant__ entropy_gradient_args a);
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    entropy_gradient_wide(const __grid_constant__ entropy_gradient_wide_args a);
#endif

FX_KERNEL_ANYBLOCK(entropy_gradient) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    entropy_row<HEAD_NARROW / 32, true>(a, shared);
#else
    entropy_row_host(a, shared);
#endif
}

// More than HEAD_NARROW atoms, or logits that leave no room in shared memory: see loss/c51_loss.cu.
FX_KERNEL_ANYBLOCK(entropy_gradient_wide) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    entropy_row<fx::MAX_ATOMS / 32, false>(a, shared);
#else
    entropy_row_host(a, shared);
#endif
}
