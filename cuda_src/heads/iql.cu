// Implicit Q-learning's state value (Kostrikov 2022) beside the distributional learner: V(s) = x w + c on the trunk's output,
// taken as a constant, fitted by expectile regression.
//
//   u = mean_b Q-_b(s, a_b) - V(s)          Q- of the target network, expected return of the action taken
//   loss = mean_i |tau - 1[u < 0]| u^2      dloss/dV = -2 |tau - 1[u < 0]| u / B
//
// iql_value: a row a block, dynamic shared memory K floats. iql_modulate: grid (ceil(B / IQL_MODULATE_ROWS)). Any block.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "lib/branches.h"
#include "lib/rows.h"

namespace {

enum { LOSS, VALUE, ADVANTAGE, GRADIENT };
static_assert(GRADIENT + 1 == IQL_COLUMNS, "the columns of a row");

}  // namespace

FX_KERNEL_ANYBLOCK(iql_value) {
    FX_DYNAMIC_SHARED(float, q);  // (K,) expected return of the action taken
    const int row = (int)blockIdx.x, K = a.K, N = a.N, action = a.action[row];
    const float *value = a.logits + (int64_t)row * a.Np, *x = a.x + (int64_t)row * a.Hp;
    const float v_min = a.step->v_min, delta_z = a.step->delta_z;
    FX_ROWS(b, K) {
        const int n = fx::branch_size(a.branch_sizes, b), first = fx::branch_first(a.branch_sizes, b);
        const int taken = fx::branch_action(a.branch_sizes, K, action, b);
        const float *advantage = value + (1 + first) * N;
        const float inverse = 1.0f / (float)n;
        auto logit = [&](int j) {
            float sum = 0.0f;
            for (int i = 0; i < n; ++i) sum += advantage[i * N + j];
            return value[j] + advantage[taken * N + j] - sum * inverse;
        };
        const float expected =
            fx::lane_softmax(N, logit, [&](int j) { return v_min + delta_z * (float)j; }).expectation;
        FX_LANE_0 q[b] = expected;
    }
    const float v = fx::block_sum(a.Hp, [&](int k) { return x[k] * a.w[k * HEAD_WIDTH]; }) + a.bias[0];
    __syncthreads();
    FX_FOR(only, 1) {
        float mean = 0.0f;
        for (int b = 0; b < K; ++b) mean += q[b];
        const float u = mean / (float)K - v, factor = u < 0.0f ? 1.0f - a.expectile : a.expectile;
        float *out = a.rows + row * IQL_COLUMNS;
        out[LOSS] = factor * u * u;
        out[VALUE] = v;
        out[ADVANTAGE] = u;
        out[GRADIENT] = -2.0f * factor * u / (float)a.B;
    }
}

FX_KERNEL_ANYBLOCK(iql_modulate) {
    const int begin = (int)blockIdx.x * IQL_MODULATE_ROWS;
    FX_FOR(i, min(IQL_MODULATE_ROWS, a.B - begin)) {
        const int r = begin + i;
        const float factor = expf(a.beta * a.rows[(int64_t)r * IQL_COLUMNS + ADVANTAGE]);
        // comparisons that a NaN fails: it stays, and per_priority counts it
        a.td_error[r] *= factor < a.low ? a.low : factor > a.high ? a.high : factor;
    }
}
