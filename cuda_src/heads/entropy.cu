// The loss term of the regulator (docs/step/epoch.md): the entropy of the taken actions' distributions, kept in a range. Bounded:
// the entropy over log N lies in [0, 1], so the loss of a row is at most weight * sum_b branch_scale.
//
//   h = -sum_j p_j log p_j / log N      loss_i = weight * branch_scale * sum_b max(0, low - h)^2 + max(0, h - high)^2
//   dh/dx_j = -p_j (log p_j + h log N) / log N
//
// Launch: grid (B,), any block (a warp a branch); dynamic shared memory 2 K N + 2 K floats.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "abi/epoch.h"
#include "lib/dueling.h"
#include "loss/head_gradient.h"

FX_KERNEL_ANYBLOCK(entropy_gradient) {
    FX_DYNAMIC_SHARED(float, shared);
    const int K = a.K, S = a.S, N = a.N, row = (int)blockIdx.x;
    const uint64_t sizes = a.branch_sizes;
    float *base = shared;                          // (K, N) V - mean_a A
    float *d = base + K * N;                       // (K, N) gradient by the taken actions' logits
    float *loss = d + K * N, *squares = loss + K;  // (K,)
    const int action = a.action[row];
    const float *value = a.logits + (int64_t)row * a.Np;
    const float weight = a.weight[0] * a.branch_scale, scale = weight / (float)a.B, inverse_log = 1.0f / logf((float)N);

    fx::dueling_base(value, sizes, K, N, base);
    __syncthreads();
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
    __syncthreads();
    fx::write_head_gradient(a.part + (int64_t)row * a.Np, K, S, N, a.Np, sizes, action,
                            [&](int b, int j) { return d[b * N + j]; });
    FX_FOR(only, 1) {
        float sum = 0.0f, square = 0.0f;
        for (int b = 0; b < K; ++b) sum += loss[b], square += squares[b];
        a.rows[row * AUX_COLUMNS + AUX_LOSS] = weight * sum;
        a.rows[row * AUX_COLUMNS + AUX_NORM2] = square;
    }
}
