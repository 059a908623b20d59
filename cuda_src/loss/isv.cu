// The internal state vector: how training stands, as six columns of every state (docs/step/isv.md).
//
//   isv_entropy   a block a row: entropy of p(s, a) at the action taken, mean over the branches, / log N          grid (B,)
//   isv_update    all six into [0, 1]                                                                       grid (1,)
//
//     atom use    exp(H(mean target)) / N                       gradient    |g| / (|g| + clip)
//     entropy     mean of isv_entropy                           drawdown    d / (d + max|z|), d in normalized reward
//     |delta|     log(1 + mean |delta| / dz) / log N            phase       min(step + 1, T) / T
//
// Logits, 4 N (K + sum n_b) bytes a row, read once more beside ddqn; sums in f64, fixed order. A component that is not finite keeps its
// last value: what made it so is a fault of the step, and the vector goes on into states that are stored.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/isv.h"
#include "abi/loss.h"
#include "lib/dueling.h"
#include "lib/guard.h"

FX_KERNEL_ANYBLOCK(isv_entropy) {
    using namespace fx;
    __shared__ float x[MAX_BRANCHES * MAX_ATOMS];  // (K, N) logits of the actions taken
    __shared__ float found[MAX_BRANCHES];
    const int row = (int)blockIdx.x, N = a.N;
    const float *value = a.logits + (int64_t)row * a.Np;
    FX_FOR(i, a.K * N) {
        const int b = i / N, j = i % N, n = branch_size(a.branch_sizes, b);
        const float *advantage = value + (1 + branch_first(a.branch_sizes, b)) * N + j;
        float sum = 0.0f;
        for (int k = 0; k < n; ++k) sum += advantage[k * N];
        x[i] = value[j] + advantage[branch_action(a.branch_sizes, a.K, a.action[row], b) * N] - sum * (1.0f / (float)n);
    }
    __syncthreads();
    FX_ROWS(b, a.K) {
        const float *mine = x + b * N;
        const softmax_row s = lane_softmax(N, [&](int j) { return mine[j]; }, [&](int j) { return mine[j]; });
        FX_LANE_0 found[b] = s.top + logf(s.sum) - s.expectation;  // H = log sum exp - E[x]
    }
    __syncthreads();
    FX_FOR(only, 1) {
        float sum = 0.0f;
        for (int b = 0; b < a.K; ++b) sum += found[b];
        a.entropy[row] = sum / ((float)a.K * logf((float)N));
    }
}

FX_KERNEL_ANYBLOCK(isv_update) {
    using namespace fx;
    const float mean = 1.0f / (float)a.B, most = logf((float)a.N);
    const double use = block_sum_f64(a.N, [&](int j) {
        const float m = a.total[STATS + j] * mean;
        return (double)(m > 0.0f ? -m * logf(m) : (m == m ? 0.0f : m));  // NaN stays NaN
    });
    const double entropy = block_sum_f64(a.B, [&](int i) { return (double)a.entropy[i]; });
    FX_FOR(only, 1) {
        const step_block s = *a.step;
        const uint64_t T = a.control->horizon > 0 ? a.control->horizon : 1, t = s.step + 1 < T ? s.step + 1 : T;
        const float norm = a.optim->grad_norm, drawdown = (float)*a.drawdown * s.reward_scale;
        const float bound = fmaxf(fabsf(s.v_min), fabsf(s.v_max));
        float now[ISV_COMPONENTS];
        now[ISV_ATOM_USE] = expf((float)use) / (float)a.N;
        now[ISV_ENTROPY] = (float)entropy * mean;
        now[ISV_TD_ERROR] = log1pf(a.total[STAT_TD_ERROR] * mean / s.delta_z) / most;
        now[ISV_GRAD_NORM] = norm / (norm + s.max_grad_norm);
        now[ISV_DRAWDOWN] = drawdown / (drawdown + bound);
        now[ISV_PHASE] = (float)((double)t / (double)T);
        for (int i = 0; i < ISV_COMPONENTS; ++i) {
            if (finite(now[i])) a.vector[i] = now[i];
            a.metrics[i] = a.vector[i];
        }
    }
}
