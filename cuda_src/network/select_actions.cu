// From head outputs to actions, one row a block: expected return of each action (lib/dueling.h), of an ensemble the mean over its
// heads, then the choice.
//
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
#include "lib/dueling.h"
#include "lib/guard.h"
#include "lib/philox.h"

namespace {

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
    __shared__ float base[fx::MAX_BRANCHES * fx::MAX_ATOMS];  // (K, N) V - mean_a A
    __shared__ float q[fx::MAX_ACTIONS], other[fx::MAX_ACTIONS];
    __shared__ int choice[fx::MAX_BRANCHES];
    const int row = (int)blockIdx.x, K = a.K, S = a.S, N = a.N;
    const uint64_t sizes = a.branch_sizes, draw = a.draws[row];
    const float *value = a.logits + (int64_t)row * a.Np;
    const float v_min = a.control->v_min, delta_z = (a.control->v_max - v_min) / (float)(N - 1);

    fx::expected_returns(value, value + N, 1, sizes, K, S, N, v_min, delta_z, base, q);
    for (int e = 0; e < a.E; ++e) {
        const float *advantage = a.more + (int64_t)row * a.Mp + e * S * N;
        fx::expected_returns(value, advantage, 1, sizes, K, S, N, v_min, delta_z, base, other);
        FX_FOR(s, S) q[s] = e + 1 < a.E ? q[s] + other[s] : (q[s] + other[s]) / (float)(1 + a.E);
        __syncthreads();
    }
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
