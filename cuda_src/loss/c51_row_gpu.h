// One row of c51_loss on a GPU. What such a small kernel costs is latency: dependent trips to memory, and then the number of
// instructions that one warp must run one after the other, about 3 cycles each. So
//   the row's logits are staged in shared memory by one trip to L2, all loads in flight at once;
//   what needs no logits passes in the shadow of that trip (branch tables) or in a warp of its own (the importance weight's
//   power, the taken actions' divisions);
//   each softmax has a warp, and each branch's projection and loss has one;
//   loops over atoms are unrolled twice, not more: code that runs once is paid for by its length;
//   sums that do not depend on each other share their shuffles' latency (warp_sums).
#pragma once
#include "lib/copy_async.h"
#include "lib/guard.h"
#include "loss/combine_stats.h"
#include "loss/head_gradient.h"
#include "loss/projection.h"

namespace fx {

// Unsigned integers that order like the floats; +0 = -0; NaN above all.
FX_DEVICE uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return x != x ? 0xffffffffu : ((int)bits < 0 ? ~bits : bits | 0x80000000u);
}
FX_DEVICE float warp_max(float x) {  // keeps NaN
    const uint32_t bits = __reduce_max_sync(0xffffffffu, ordered(x));
    return __uint_as_float((int)bits < 0 ? bits & 0x7fffffffu : ~bits);
}

// A row in shared memory.
struct c51_row {
    const float *logits;  // (3, Np) or, too long for shared memory, rows of the passes `pass` floats apart
    int64_t pass;
    float *base;    // (3, K, N) V - mean_a A of each pass; then of each branch:
    float *log_p;   //   (K, N) the first third: log p at s; then the cross-entropy part of d, without weight
    float *m;       //   (K, N) the second third: projected target
    float *p_next;  //   (K, N) the last third: p of the target network; then the expected-value part of d
    float *q_next;  // (S,) expected return of each action at s'
    float *stats;   // (K, STATS) each branch's share of the row's statistics
    float *q;       // (K,) expected return of the taken action at s
    float *weight;  // (3,) importance weight; times the branch scale; and over B
    int *first;     // (K,) number of the branch's first action
    int *taken;     // (K,) number of the taken action
    uint8_t *branch;  // (S,) branch of each action

    FX_DEVICE c51_row(const c51_loss_args &a, float *shared) {
        const int KN = a.K * a.N;
        const bool stage = 3 * a.Np <= C51_STAGE_FLOATS;
        pass = stage ? a.Np : (int64_t)a.R * a.Np;
        logits = stage ? shared : a.logits + (int64_t)blockIdx.x * a.Np;
        stats = stage ? shared + 3 * a.Np : shared;
        base = stats + a.K * STATS;
        log_p = base, m = base + KN, p_next = m + KN;
        q_next = p_next + KN;
        q = q_next + a.S, weight = q + a.K;
        first = reinterpret_cast<int *>(weight + 3), taken = first + a.K;
        branch = reinterpret_cast<uint8_t *>(taken + a.K);
    }
};

// What the step and the batch say of the row: loaded at once, while the logits are on their way. A load further down would
// be one more trip to L2 for all.
struct c51_settings {
    float v_min, delta_z, q_limit, alpha, smoothing, spike_mass, q_clip, beta, smallest;
    float ret, discount, priority;

    FX_DEVICE c51_settings(const c51_loss_args &a) {
        const step_block &step = *a.step;
        v_min = step.v_min, delta_z = step.delta_z, alpha = step.alpha_c51, smoothing = step.label_smoothing;
        spike_mass = step.spike_mass, q_clip = step.q_clip, beta = step.beta_per;
        smallest = __uint_as_float(step.min_priority);
        ret = a.ret[blockIdx.x], discount = a.discount[blockIdx.x], priority = a.priority[blockIdx.x];
        q_limit = fx::q_limit(fmaxf(fabsf(v_min), fabsf(step.v_max)));
    }

    FX_DEVICE float atom(int j) const { return v_min + delta_z * (float)j; }
};

// Loop over the atoms of a lane.
#define FX_ATOMS(j, n) _Pragma("unroll 2") FX_LANES(j, n)

// Softmax of base + logit, (N,) each.
FX_DEVICE softmax_row softmax(const c51_settings &z, int N, const float *base, const float *logit) {
    float top = -INFINITY, sums[2] = {};
    FX_ATOMS(j, N) {
        const float x = base[j] + logit[j];
        top = x > top ? x : top;  // leaves NaN out: the sums do not
    }
    top = warp_max(top);
    FX_ATOMS(j, N) {
        const float e = expf(base[j] + logit[j] - top);
        sums[0] += e, sums[1] += e * z.atom(j);
    }
    warp_sums(sums);
    return {top, sums[0], sums[1] / sums[0]};
}

// V - mean_a A of pass r / K, branch r % K (Wang 2016).
FX_DEVICE void c51_base(const c51_loss_args &a, const c51_row &s, int r) {
    const int N = a.N, pass = (r >= a.K) + (r >= 2 * a.K), b = r - pass * a.K, n = branch_size(a.branch_sizes, b);
    const float *value = s.logits + pass * s.pass, *advantage = value + (1 + s.first[b]) * N;
    const float inverse = 1.0f / (float)n;
    FX_LANES(j, N) {
        float sum = 0.0f;
#pragma unroll 4
        for (int i = 0; i < n; ++i) sum += advantage[i * N + j];
        s.base[r * N + j] = value[j] - sum * inverse;
    }
}

// Expected return of action r at s' by the online network.
FX_DEVICE void c51_next(const c51_loss_args &a, const c51_row &s, const c51_settings &z, int r) {
    const float *base = s.base + (a.K + s.branch[r]) * a.N, *logit = s.logits + s.pass + (1 + r) * a.N;
    const float q = softmax(z, a.N, base, logit).expectation;
    FX_LANE_0 {
        s.q_next[r] = q;
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, blockIdx.x, q, z.q_limit);
    }
}

// Log-probabilities of the taken action of branch b at s.
FX_DEVICE void c51_taken(const c51_loss_args &a, const c51_row &s, const c51_settings &z, int b) {
    const int N = a.N;
    float *base = s.base + b * N, highest = -INFINITY;
    const float *logit = s.logits + (1 + s.taken[b]) * N;
    const softmax_row soft = softmax(z, N, base, logit);
    const float log_sum = soft.top + logf(soft.sum);
    FX_ATOMS(j, N) {
        const float log_p = base[j] + logit[j] - log_sum;
        s.log_p[b * N + j] = log_p;
        highest = log_p > highest ? log_p : highest;
    }
    if (__any_sync(0xffffffffu, highest > 1e-6f)) {
        highest = warp_max(highest);
        FX_LANE_0 guard_raise(a.guard, GUARD_DDQN, CHECK_LOG_PROBABILITY, blockIdx.x, highest);
    }
    FX_LANE_0 {
        s.q[b] = soft.expectation;
        s.stats[b * STATS] = log_sum;  // until c51_branch has checked by it
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, blockIdx.x, soft.expectation, z.q_limit);
    }
}

// Branch b: double DQN (van Hasselt 2016), projection, losses, the two parts of d without the importance weight.
FX_DEVICE void c51_branch(const c51_loss_args &a, const c51_row &s, const c51_settings &z, int b) {
    const int lane = (int)(threadIdx.x & 31), N = a.N, K = a.K;
    const float alpha = z.alpha, keep = 1.0f - z.smoothing, uniform = z.smoothing / (float)N, q = s.q[b];

    // The online network chooses at s', the target network values.
    const int first = s.first[b], n = branch_size(a.branch_sizes, b);
    uint32_t highest = 0;
    int best = 0;
    for (int i = 0; i < n; i += 32) {
        const uint32_t key = i + lane < n ? ordered(s.q_next[first + i + lane]) : 0;
        const uint32_t most = __reduce_max_sync(0xffffffffu, key), who = __ballot_sync(0xffffffffu, key == most);
        if (most > highest) highest = most, best = i + __ffs((int)who) - 1;  // ties: the lowest index
    }
    float *log_p = s.log_p + b * N, *m = s.m + b * N, *p_next = s.p_next + b * N;
    const float *logit = s.logits + 2 * s.pass + (1 + first + best) * N;
    const softmax_row soft = softmax(z, N, p_next, logit);
    const float inverse = 1.0f / soft.sum;
    FX_ATOMS(j, N) p_next[j] = expf(p_next[j] + logit[j] - soft.top) * inverse;
    __syncwarp();
    project(p_next, m, N, (z.ret + z.discount * z.v_min - z.v_min) * (1.0f / z.delta_z), z.discount,
            soft.sum * inverse);
    __syncwarp();

    // Sums over atoms: mass, y, cross-entropy, squares of the two parts before their factors, mass on the edges, probability.
    float sums[7] = {};
    bool spike = false;
    FX_ATOMS(j, N) {
        const float p = expf(log_p[j]), smooth = keep * m[j] + uniform, ce = p - smooth, mse = p * (z.atom(j) - q);
        sums[0] += m[j], sums[1] += m[j] * z.atom(j), sums[2] -= smooth * log_p[j];
        sums[3] += ce * ce, sums[4] += mse * mse;
        sums[5] += j == 0 || j == N - 1 ? m[j] : 0.0f, sums[6] += p;
        spike = spike || m[j] > z.spike_mass;
        log_p[j] = alpha * ce, p_next[j] = mse;
    }
    warp_sums(sums);
    spike = __any_sync(0xffffffffu, spike);
    const float y = sums[1], ce = sums[2], error = q - y, mse_factor = (1.0f - alpha) * 2.0f * error;
    FX_ATOMS(j, N) p_next[j] *= mse_factor;
    FX_LANE_0 {
        const float mean = 1.0f / (float)K;
        const bool terminal = z.discount == 0.0f;
        guard_probabilities(a.guard, GUARD_DDQN, blockIdx.x, sums[6], s.stats[b * STATS]);
        float4 *out = reinterpret_cast<float4 *>(s.stats + b * STATS);
        static_assert(STATS == 16 && STAT_Q_MIN == 0 && STAT_LOSS == 2 && STAT_MSE == 4 && STAT_WEIGHT == 8 &&
                          STAT_CE_NORM2 == 12 && STAT_Q_CLIPPED == 14,
                      "the order below");
        // q_min, q_max, loss, ce;  mse, td_error, q, target;  weight, edge, spikes, non-terminal;  norms, clipped
        out[0] = make_float4(q, q, alpha * ce + (1.0f - alpha) * error * error, ce * mean);
        out[1] = make_float4(error * error * mean, fabsf(error) * mean, q * mean, y * mean);
        out[2] = make_float4(b == 0 ? 1.0f : 0.0f, sums[5] * mean, spike && !terminal ? mean : 0.0f,
                             b == 0 && !terminal ? 1.0f : 0.0f);
        out[3] = make_float4(alpha * alpha * sums[3], mse_factor * mse_factor * sums[4],
                             fabsf(q) > z.q_clip ? 1.0f : 0.0f, 0.0f);
        a.next_action[blockIdx.x * K + b] = best;
        guard_mass(a.guard, GUARD_DDQN, blockIdx.x, sums[0]);
        guard_finite(a.guard, GUARD_DDQN, blockIdx.x, ce);
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, blockIdx.x, y, z.q_limit);
    }
}

// Importance weight (Schaul 2016) of the row; checks of what was drawn.
FX_DEVICE void c51_weight(const c51_loss_args &a, const c51_row &s, const c51_settings &z) {
    // Priority 0: nothing could be drawn, a fault; the row then weighs nothing.
    const float weight = z.priority > 0.0f ? powf(z.smallest / z.priority, z.beta) : 0.0f;
    FX_LANE_0 {
        const float scaled = weight * a.branch_scale;
        s.weight[0] = weight, s.weight[1] = scaled, s.weight[2] = scaled / (float)a.B;
        if (!(z.priority > 0.0f)) guard_raise(a.guard, GUARD_DDQN, CHECK_EMPTY, blockIdx.x, z.priority);
        guard_finite(a.guard, GUARD_DDQN, blockIdx.x, z.ret);
        guard_finite(a.guard, GUARD_DDQN, blockIdx.x, z.discount);
        guard_finite(a.guard, GUARD_DDQN, blockIdx.x, weight);
    }
}

// What branch b leaves in memory: its rows of the head gradient; A's is d - mean_a d, and only the taken action has a d.
FX_DEVICE void c51_write_branch(const c51_loss_args &a, const c51_row &s, int b) {
    const int N = a.N, n = branch_size(a.branch_sizes, b), first = s.first[b], taken = s.taken[b] - first;
    const float scale = s.weight[2], inverse = 1.0f / (float)n;
    const int64_t at = ((int64_t)blockIdx.x * a.K + b) * N;
    FX_LANES(j, N) {
        const float ce = scale * s.log_p[b * N + j], mse = scale * s.p_next[b * N + j], d = ce + mse;
        if (a.target) a.target[at + j] = s.m[b * N + j];
        if (a.ce_grad) a.ce_grad[at + j] = ce, a.mse_grad[at + j] = mse;
        if (a.dlogits) {
            float *out = a.dlogits + (int64_t)blockIdx.x * a.Np + (1 + first) * N + j;
#pragma unroll 1
            for (int i = 0; i < n; ++i) out[i * N] = ((i == taken ? 1.0f : 0.0f) - inverse) * d;
        }
    }
}

// What the branches make together: V's gradient, the sum over branches and actions, and their mean target.
FX_DEVICE void c51_write_value(const c51_loss_args &a, const c51_row &s) {
    const int N = a.N, K = a.K, S = a.S;
    const float scale = s.weight[2], mean = 1.0f / (float)K;
    float *rows = a.rows + (int64_t)blockIdx.x * a.W;
    FX_LANES(j, N) {
        float sum = 0.0f, d = 0.0f;
#pragma unroll 1
        for (int b = 0; b < K; ++b) sum += s.m[b * N + j], d += s.log_p[b * N + j] + s.p_next[b * N + j];
        rows[STATS + j] = sum * mean;
        if (a.dlogits) a.dlogits[(int64_t)blockIdx.x * a.Np + j] = scale * d;
    }
    if (a.dlogits) FX_LANES(j, a.Np - (1 + S) * N) a.dlogits[(int64_t)blockIdx.x * a.Np + (1 + S) * N + j] = 0.0f;
}

// The statistics.
FX_DEVICE void c51_write_stats(const c51_loss_args &a, const c51_row &s) {
    const int K = a.K;
    const float scale = s.weight[2];
    float *rows = a.rows + (int64_t)blockIdx.x * a.W;
    FX_LANES(c, STATS) {
        float v = s.stats[c];
#pragma unroll 1
        for (int b = 1; b < K; ++b) v = combine_stats(c, v, s.stats[b * STATS + c]);
        v *= c == STAT_LOSS                              ? s.weight[1]
             : c == STAT_WEIGHT                          ? s.weight[0]
             : c == STAT_CE_NORM2 || c == STAT_MSE_NORM2 ? scale * scale
                                                         : 1.0f;
        rows[c] = v;
        if (c == STAT_TD_ERROR) a.td_error[blockIdx.x] = v;
    }
}

FX_DEVICE void c51_row_gpu(const c51_loss_args &a, float *shared) {
    const int K = a.K, S = a.S;
    const c51_row s(a, shared);
    if (s.logits == shared) {
        const float *from = a.logits + (int64_t)blockIdx.x * a.Np;
#pragma unroll 1
        for (int pass = 0; pass < 3; ++pass)
            FX_FOR(q, a.Np / 4) copy_async(shared + pass * a.Np + 4 * q, from + (int64_t)pass * a.R * a.Np + 4 * q);
    }
    const int action = a.action[blockIdx.x];
    const c51_settings z(a);
    FX_FOR(b, K) {
        const int first = branch_first(a.branch_sizes, b), n = branch_size(a.branch_sizes, b);
        s.first[b] = first;
        for (int i = 0; i < n; ++i) s.branch[first + i] = (uint8_t)b;
    }
    copy_async_wait();
    __syncthreads();
    FX_ROWS(r, 3 * K + 2) {
        if (r < 3 * K) c51_base(a, s, r);
        else if (r == 3 * K) c51_weight(a, s, z);
        else FX_LANES(b, K) s.taken[b] = s.first[b] + branch_action(a.branch_sizes, K, action, b);
    }
    __syncthreads();
    FX_ROWS(r, S + K) {
        if (r < S) c51_next(a, s, z, r);
        else c51_taken(a, s, z, r - S);
    }
    __syncthreads();
    FX_ROWS(b, K) c51_branch(a, s, z, b);
    __syncthreads();
    FX_ROWS(r, K + 2) {
        if (r < K) c51_write_branch(a, s, r);
        else if (r == K) c51_write_value(a, s);
        else c51_write_stats(a, s);
    }
}

}  // namespace fx
