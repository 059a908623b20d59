// From head outputs to actions, one row a block: dueling combination (Wang 2016), per branch (Tavakoli 2018), expected
// return under the categorical distribution (C51, Bellemare 2017), then the choice.
//
//   Q_b,a = sum_j z_j softmax_j(V_j + A_b,a,j - mean_a A_b,a,j)
//   choice_b: uniform with chance epsilon; else argmax_a Q_b,a (ties: the lowest), or, where temperature > 0, drawn from
//   softmax_a(Q_b,a / temperature)
//
// A row draws from Philox(seed, its own counter), which it advances, so that a replayed graph explores anew and no launch
// has to follow. A value that is not finite makes the action -1, which no environment takes for an action, and a fault.
// Launch: grid (R,), block (128,).
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/select.h"
#include "lib/branches.h"
#include "lib/guard.h"
#include "lib/philox.h"
#include "lib/rows.h"

namespace {

constexpr int MAX_ATOMS = 256, MAX_ACTIONS = fx::MAX_BRANCHES * 255;

FX_DEVICE int best_action(const float *q, int n) {
    int best = 0;
    for (int i = 1; i < n; ++i)
        if (q[i] > q[best]) best = i;
    return best;
}

// The first action whose cumulated weight exceeds u times the sum; the last one with any weight, should rounding say so.
FX_DEVICE int boltzmann_action(const float *q, int n, float temperature, float u) {
    const float top = q[best_action(q, n)];
    float sum = 0.0f, cumulated = 0.0f;
    for (int i = 0; i < n; ++i) sum += expf((q[i] - top) / temperature);
    int chosen = 0;
    for (int i = 0; i < n; ++i) {
        const float weight = expf((q[i] - top) / temperature);
        if (weight > 0.0f) chosen = i;
        cumulated += weight;
        if (cumulated > u * sum) break;
    }
    return chosen;
}

}  // namespace

FX_KERNEL_ANYBLOCK(select_actions) {
    __shared__ float base[fx::MAX_BRANCHES * MAX_ATOMS];  // (K, N) V - mean_a A
    __shared__ float q[MAX_ACTIONS];
    __shared__ int choice[fx::MAX_BRANCHES];
    const int row = (int)blockIdx.x, K = a.K, S = a.S, N = a.N;
    const uint64_t sizes = a.branch_sizes, draw = a.draws[row];
    const float *value = a.logits + (int64_t)row * a.Np;
    const float v_min = a.control->v_min, delta_z = (a.control->v_max - v_min) / (float)(N - 1);

    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b);
        const float *advantage = value + (1 + fx::branch_first(sizes, b)) * N;
        float *out = base + b * N;
        FX_LANES(j, N) out[j] = 0.0f;
        for (int i = 0; i < n; ++i) FX_LANES(j, N) out[j] += advantage[i * N + j];
        FX_LANES(j, N) out[j] = value[j] - out[j] * (1.0f / (float)n);
    }
    __syncthreads();

    FX_ROWS(s, S) {
        const float *v = base + fx::branch_of(sizes, s) * N, *x = value + (1 + s) * N;
        const float expected =
            fx::lane_softmax(
                N, [&](int j) { return v[j] + x[j]; }, [&](int j) { return v_min + delta_z * (float)j; })
                .expectation;
        FX_LANE_0 q[s] = expected;
    }
    __syncthreads();
    if (a.q)
        FX_FOR(s, S) a.q[row * S + s] = q[s];

    FX_FOR(b, K) {
        const int n = fx::branch_size(sizes, b);
        const float *mine = q + fx::branch_first(sizes, b);
        const uint4 random = fx::philox(a.control->seed, draw, RNG_EXPLORE, (uint32_t)(row * K + b));
        const float epsilon = a.explore->epsilon, temperature = a.explore->temperature;
        int chosen;
        if (fx::uniform01(random.x) < epsilon) chosen = (int)(((uint64_t)random.y * (uint64_t)n) >> 32);
        else if (temperature > 0.0f) chosen = boltzmann_action(mine, n, temperature, fx::uniform01(random.z));
        else chosen = best_action(mine, n);
        for (int i = 0; i < n; ++i) {
            if (fx::finite(mine[i])) continue;
            chosen = -1;
            if (a.guard) fx::guard_raise(a.guard, GUARD_FORWARD, CHECK_NON_FINITE, (uint32_t)row, mine[i]);
        }
        choice[b] = chosen;
    }
    __syncthreads();

    FX_FOR(one, 1) {
        int action = 0;
        for (int b = 0; b < K; ++b)
            action = action < 0 || choice[b] < 0 ? -1 : action * fx::branch_size(sizes, b) + choice[b];
        a.action[row] = action;
        a.draws[row] = draw + 1;
    }
}

FX_KERNEL_ANYBLOCK(set_exploration) {
    FX_FOR(one, 1) {
        a.explore->epsilon = a.epsilon;
        a.explore->temperature = a.temperature;
    }
}
