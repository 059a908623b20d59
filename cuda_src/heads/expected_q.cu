// Between epochs: what the network expects of every action on a batch of states, and how it spreads over the atoms
// (docs/step/epoch.md). Not part of the step; its sums over the rows are made on the host, in f64.
//
//   Q_a = sum_j p_a,j z_j     Var_a = sum_j p_a,j (z_j - Q_a)^2     H_a = -sum_j p_a,j log p_a,j / log N
//   mean_j = mean_b mean_a p_b,a,j
//
// Launch: grid (R,), any block (a warp an action); dynamic shared memory K N + 3 S floats. S N exponentials twice.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/epoch.h"
#include "lib/branches.h"
#include "lib/dueling.h"
#include "lib/rows.h"

FX_KERNEL_ANYBLOCK(expected_q) {
    FX_DYNAMIC_SHARED(float, shared);
    const int K = a.K, S = a.S, N = a.N, row = (int)blockIdx.x;
    const uint64_t sizes = a.branch_sizes;
    float *base = shared;                                                 // (K, N) V - mean_a A
    float *top = base + K * N, *inverse = top + S, *share = inverse + S;  // (S,) of each softmax; 1 / (K n_b)
    const float *value = a.logits + (int64_t)row * a.Np;
    const float v_min = a.control->v_min, delta_z = (a.control->v_max - v_min) / (float)(N - 1);
    const float inverse_log = 1.0f / logf((float)N);

    fx::dueling_base(value, sizes, K, N, base);
    __syncthreads();
    FX_ROWS(s, S) {
        const int b = fx::branch_of(sizes, s);
        const float *v = base + b * N, *x = value + (1 + s) * N;
        const auto logit = [&](int j) { return v[j] + x[j]; };
        const auto atom = [&](int j) { return v_min + delta_z * (float)j; };
        const fx::softmax_row soft = fx::lane_softmax(N, logit, atom);
        const float q = soft.expectation, over = 1.0f / soft.sum, log_sum = logf(soft.sum);
        const float variance = fx::lane_sum(N, [&](int j) {
            const float off = atom(j) - q;
            return expf(logit(j) - soft.top) * over * off * off;
        });
        const float entropy = fx::lane_sum(N, [&](int j) {
            const float log_p = logit(j) - soft.top - log_sum;
            return -expf(log_p) * log_p;  // p log p -> 0 from below: 0 (-large), never 0 (-inf)
        });
        FX_LANE_0 {
            top[s] = soft.top, inverse[s] = over;
            share[s] = 1.0f / (float)(K * fx::branch_size(sizes, b));
            const int64_t at = (int64_t)row * S + s;
            a.q[at] = q, a.variance[at] = variance, a.entropy[at] = entropy * inverse_log;
        }
    }
    __syncthreads();
    FX_FOR(j, N) {
        float sum = 0.0f;
        for (int s = 0; s < S; ++s) {
            const float x = base[fx::branch_of(sizes, s) * N + j] + value[(1 + s) * N + j];
            sum += share[s] * expf(x - top[s]) * inverse[s];
        }
        a.mean[(int64_t)row * N + j] = sum;
    }
}
