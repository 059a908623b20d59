// Conservative Q-learning (Kumar 2020, the CQL(H) form) on expected returns, a row a block: what an action that is not in
// the data may be worth is pushed down, what was done is pushed up.
//
//   loss_i = weight * sum_b [ logsumexp_a Q_b(s, a) - Q_b(s, a_data) ],   mean over the rows
//   dloss/dlogit_b,a,j = weight/B * (softmax_a(Q_b)_a - 1[a = a_data]) * p_b,a,j (z_j - Q_b,a)
//
// and through the dueling combination to the head's output: V's gradient is the sum over branches and actions, A's is
// d - mean_a d. Every action has a gradient here, so the softmaxes are made again rather than stored: S N exponentials twice.
//
// Launch: grid (B,), any block (a warp an action); dynamic shared memory 2 K N + 4 S + K floats.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "lib/branches.h"
#include "lib/rows.h"

FX_KERNEL_ANYBLOCK(cql_gradient) {
    FX_DYNAMIC_SHARED(float, shared);
    const int K = a.K, S = a.S, N = a.N;
    const uint64_t sizes = a.branch_sizes;
    float *base = shared;                           // (K, N) V - mean_a A
    float *mean = base + K * N;                     // (K, N) mean_a d
    float *top = mean + K * N, *inverse = top + S;  // (S,) of each softmax: largest logit, 1 / sum
    float *q = inverse + S, *factor = q + S;        // (S,) expected return; dloss/dQ
    float *loss = factor + S;                       // (K,)
    const int row = (int)blockIdx.x, action = a.action[row];
    const float *value = a.logits + (int64_t)row * a.Np;
    const float v_min = a.step->v_min, delta_z = a.step->delta_z, scale = a.weight / (float)a.B;

    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b);
        const float *advantage = value + (1 + fx::branch_first(sizes, b)) * N;
        float *out = base + b * N;
        FX_LANES(j, N) {
            float sum = 0.0f;
            for (int i = 0; i < n; ++i) sum += advantage[i * N + j];
            out[j] = value[j] - sum * (1.0f / (float)n);
        }
    }
    __syncthreads();
    FX_ROWS(s, S) {
        const float *v = base + fx::branch_of(sizes, s) * N, *x = value + (1 + s) * N;
        const fx::softmax_row soft =
            fx::lane_softmax(N, [&](int j) { return v[j] + x[j]; }, [&](int j) { return v_min + delta_z * (float)j; });
        FX_LANE_0 top[s] = soft.top, inverse[s] = 1.0f / soft.sum, q[s] = soft.expectation;
    }
    __syncthreads();
    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b), first = fx::branch_first(sizes, b);
        const int taken = fx::branch_action(sizes, K, action, b);
        const fx::softmax_row soft = fx::lane_softmax(n, [&](int i) { return q[first + i]; }, [](int) { return 0.0f; });
        FX_LANES(i, n) {
            const float probability = expf(q[first + i] - soft.top) / soft.sum;
            factor[first + i] = scale * (probability - (i == taken ? 1.0f : 0.0f));
        }
        FX_LANE_0 loss[b] = soft.top + logf(soft.sum) - q[first + taken];
    }
    __syncthreads();

    auto gradient = [&](int s, int b, int j) {
        const float p = expf(base[b * N + j] + value[(1 + s) * N + j] - top[s]) * inverse[s];
        return factor[s] * p * (v_min + delta_z * (float)j - q[s]);
    };
    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b), first = fx::branch_first(sizes, b);
        FX_LANES(j, N) {
            float sum = 0.0f;
            for (int i = 0; i < n; ++i) sum += gradient(first + i, b, j);
            mean[b * N + j] = sum * (1.0f / (float)n);
        }
    }
    __syncthreads();
    float *out = a.part + (int64_t)row * a.Np;
    FX_ROWS(r, 1 + S) {
        if (r == 0) {
            FX_LANES(j, N) {
                float sum = 0.0f;
                for (int b = 0; b < K; ++b) sum += mean[b * N + j] * (float)fx::branch_size(sizes, b);
                out[j] = sum;
            }
        } else {
            const int b = fx::branch_of(sizes, r - 1);
            FX_LANES(j, N) out[r * N + j] = gradient(r - 1, b, j) - mean[b * N + j];
        }
    }
    FX_FOR(j, a.Np - (1 + S) * N) out[(1 + S) * N + j] = 0.0f;
    const float squares = fx::block_sum(S * N, [&](int i) {
        const float d = gradient(i / N, fx::branch_of(sizes, i / N), i % N);
        return d * d;
    });
    FX_FOR(only, 1) {
        float sum = 0.0f;
        for (int b = 0; b < K; ++b) sum += loss[b];
        a.rows[row * AUX_COLUMNS + AUX_LOSS] = a.weight * sum;
        a.rows[row * AUX_COLUMNS + AUX_NORM2] = squares;
    }
}
