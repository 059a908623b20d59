// Prioritized sampling (Schaul et al. 2016, "Prioritized experience replay") and n-step transitions, one block a drawn row.
//
//   u_k = (k + xi_k) / B * sum P, stratified;   the row drawn is the smallest i with P_0 + .. + P_i > u_k and P_i > 0
//   R   = sum_{j<m} gamma^j r_{i+j},  m = n_step, or up to and with the first row that ended its episode
//   s'  = the state m steps on; the final observation where the window ended
//
// A row that is marked mirrored comes out as the transition of the mirrored market: s and s' times a sign a column. Its action
// was stored so; its return is the same, since a mirrored position in a mirrored market earns the same (known failure K14).
// The mark of the row drawn counts for its whole window, whatever the marks of the rows after it.
//
// With conviction (docs/step/plan.md) r is the reward times what its decision was scaled by. The raw one stays in the row.
//
// Returns are formed here, not at insertion, so that gamma and the reward's scale may change. A row has priority 0 until
// its window is complete or ended (insert.cu), so a window here never reaches the write head.
// Rows come out in ascending order, since u_k does not fall in k and the descent is monotone: per_priority relies on it.
// Launch: grid (B,), block (32,).
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/replay.h"
#include "lib/guard.h"
#include "lib/philox.h"
#include "replay/sum_tree.h"

namespace fx {

// A state row in up to two parts; from their end on it is zero.
struct state_parts {
    const float *first, *second;
    int n_first, n;

    FX_DEVICE float at(int j) const { return j < n_first ? first[j] : (j < n ? second[j - n_first] : 0.0f); }
};

// Writes two state rows of `width` floats. A thread has eight loads on their way before it stores the first: one trip to
// memory instead of one an iteration. `sign`, where given, has a factor for each column of a state.
FX_DEVICE void gather(float *to_a, float *to_b, state_parts a, state_parts b, const float *sign, int width) {
#ifdef FX_GPU
    constexpr int AHEAD = 4;
    const int threads = (int)blockDim.x;
    for (int j0 = (int)threadIdx.x; j0 < width; j0 += AHEAD * threads) {
        float x[AHEAD], y[AHEAD];
#pragma unroll
        for (int t = 0; t < AHEAD; ++t) {
            const int j = j0 + t * threads;
            const float factor = sign && j < a.n ? sign[j] : 1.0f;
            x[t] = factor * a.at(j);
            y[t] = factor * b.at(j);
        }
#pragma unroll
        for (int t = 0; t < AHEAD; ++t) {
            const int j = j0 + t * threads;
            if (j < width) to_a[j] = x[t], to_b[j] = y[t];
        }
    }
#else
    for (int j = 0; j < a.n_first; ++j) to_a[j] = a.first[j];
    for (int j = 0; j < b.n_first; ++j) to_b[j] = b.first[j];
    for (int j = a.n_first; j < a.n; ++j) to_a[j] = a.second[j - a.n_first], to_b[j] = b.second[j - b.n_first];
    for (int j = 0; sign && j < a.n; ++j) to_a[j] *= sign[j], to_b[j] *= sign[j];
    for (int j = a.n; j < width; ++j) to_a[j] = to_b[j] = 0.0f;
#endif
}

}  // namespace fx

FX_KERNEL_ANYBLOCK(per_sample) {
    const int k = (int)blockIdx.x;
    float *state = a.batch_state + (int64_t)k * a.Sp, *next_state = a.batch_next_state + (int64_t)k * a.Sp;
    // Everything that depends on nothing is loaded first: what follows is a chain of dependent loads.
    const uint64_t seed = a.step->seed, rng_step = a.step->rng_step;
    const float gamma = a.step->gamma, scale = a.step->reward_scale;
    const int stride = (int)a.ring->stride;
    const double *root = a.super_sum ? a.super_sum : a.block_sum;
    fx::sum_node node;
    node.load(root);

    const double total = node.total;
    if (!(total > 0.0)) {  // nothing to draw: the caller refuses this; if it did not, this is a fault
        FX_FOR(j, a.Sp) state[j] = next_state[j] = 0.0f;
        FX_FOR(one, 1) {
            a.batch_action[k] = 0;
            a.batch_return[k] = a.batch_discount[k] = a.batch_priority[k] = 0.0f;
            a.batch_index[k] = -1;
            atomicMin(&a.step->min_priority, 0u);
            if (a.guard) fx::guard_raise(a.guard, GUARD_PER_SAMPLE, CHECK_EMPTY, (uint32_t)k, (float)total);
        }
        return;
    }

    // Descent: root, middle level (where there are three), priorities.
    const uint4 random = fx::philox(seed, rng_step, RNG_SAMPLE, (uint32_t)k);
    double u = ((double)k + fx::uniform01_f64(random.x, random.y)) / (double)a.B * total, value;
    u = fmin(u, total * (1.0 - 1.0 / 4503599627370496.0));
    int i = node.find(root, u, value);
    if (a.super_sum) {
        const double *sums = a.block_sum + i * SUM_FANOUT;
        node.load(sums);
        i = i * SUM_FANOUT + node.find(sums, u, value);
    }
    const float *leaves = a.priority + (int64_t)i * SUM_FANOUT;
    node.load(leaves);
    i = i * SUM_FANOUT + node.find(leaves, u, value);

    // The window: all its rows at once, then a short walk.
    __shared__ replay_row window[MAX_N_STEP];
    __shared__ float conviction[MAX_N_STEP];
    const float *sign = a.mirrored && a.mirrored[i] ? a.sign : nullptr;
    FX_FOR(j, a.n_step) {
        const int at = fx::ring_forward(i, j * stride, a.capacity);
        window[j] = a.rows[at];
        conviction[j] = a.conviction ? a.conviction[at] : 1.0f;
    }
    const uint32_t smallest = fx::look(&a.step->min_priority);
    __syncthreads();
    float ret = 0.0f, discount = 1.0f;
    int last = 0;
    for (int j = 0; j < a.n_step; ++j) {
        ret += discount * (window[j].reward * scale * conviction[j]);
        discount *= gamma;
        last = j;
        if (window[j].ended) break;
    }
    const int ended = window[last].ended, at = fx::ring_forward(i, last * stride, a.capacity);
    if (ended & ENDED_TERMINATED) discount = 0.0f;

    fx::state_parts s, next;
    if (a.state) {
        const int64_t S = a.S;
        s = {a.state + i * S, nullptr, a.S, a.S};
        next = {ended ? a.final_state + window[last].final_slot * S
                      : a.state + fx::ring_forward(at, stride, a.capacity) * S,
                nullptr, a.S, a.S};
    } else {
        const int64_t table = a.table, P = a.P;
        s = {a.features + window[0].feature_row * table, a.portfolio + i * 2 * P, a.F, a.S};
        next = {a.features + window[last].next_feature_row * table, a.portfolio + (at * 2 + 1) * P, a.F, a.S};
    }
    fx::gather(state, next_state, s, next, sign, a.Sp);

    FX_FOR(one, 1) {
        const float drawn = (float)value;
        const uint32_t bits = (uint32_t)__float_as_int(drawn);
        a.batch_action[k] = window[0].action;
        a.batch_return[k] = ret;
        a.batch_discount[k] = discount;
        a.batch_index[k] = i;
        a.batch_priority[k] = drawn;
        if (bits < smallest) atomicMin(&a.step->min_priority, bits);
    }
}
