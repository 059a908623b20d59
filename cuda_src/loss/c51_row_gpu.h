// One row of c51_loss on a GPU: a warp a branch, everything between the logits and the gradient in its registers, one
// barrier before the branches meet. What such a small kernel costs is latency, so
//   the row's logits are staged by one trip to L2, all loads in flight at once;
//   softmaxes of 8 actions run side by side, 4 lanes each, so that a reduction over atoms takes 2 shuffles, not 5;
//   sums that do not depend on each other share their shuffles' latency (warp_sums).
// Two layouts of N atoms: wide, atom lane + 32 k in register k; narrow, atom (lane & 3) + 4 t of action lane >> 2.
#pragma once
#include "lib/copy_async.h"
#include "lib/guard.h"
#include "loss/combine_stats.h"
#include "loss/head_gradient.h"
#include "loss/projection.h"

namespace fx {

// Unsigned integers that order like the floats; +0 = -0; NaN above all.
FX_DEVICE uint32_t ordered(float x) {
    uint32_t bits = __float_as_uint(x + 0.0f);
    return x != x ? 0xffffffffu : ((int)bits < 0 ? ~bits : bits | 0x80000000u);
}
FX_DEVICE float warp_max(float x) {  // keeps NaN
    uint32_t bits = __reduce_max_sync(0xffffffffu, ordered(x));
    return __uint_as_float((int)bits < 0 ? bits & 0x7fffffffu : ~bits);
}

// What the branches of a row share.
struct c51_row {
    float v_min, delta_z, alpha, keep, uniform, q_limit, spike_mass, q_clip;
    float ret, discount, weight;
    int row, action;
    const float *s, *s_next, *target;  // logits of the three passes

    FX_DEVICE float atom(int j) const { return v_min + delta_z * (float)j; }
};

// Branch b of the row. base_s, base_next (N,): scratch; stats (STATS,): its share of the row's statistics.
// Leaves d of the head gradient in base_s and the projected target in base_next.
template <int PER>
FX_DEVICE void c51_branch(const c51_loss_args &a, const c51_row &x, int b, float *base_s, float *base_next, float *p_next,
                          float *stats) {
    const int lane = (int)(threadIdx.x & 31), N = a.N, K = a.K;
    const int first = 1 + branch_first(a.branch_sizes, b), n = branch_size(a.branch_sizes, b);
    const int taken = first + branch_action(a.branch_sizes, K, x.action, b);

    // V - mean_a A of each pass: Wang 2016.
    float v[3][PER] = {};
#pragma unroll(PER <= 2 ? 4 : 1)
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const int j = lane + 32 * k, at = (first + i) * N + j;
            if (j < N) v[0][k] += x.s[at], v[1][k] += x.s_next[at], v[2][k] += x.target[at];
        }
    }
    const float inverse_n = 1.0f / (float)n;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + 32 * k;
        if (j < N) {
            base_s[j] = x.s[j] - v[0][k] * inverse_n;
            base_next[j] = x.s_next[j] - v[1][k] * inverse_n;
            p_next[j] = x.target[j] - v[2][k] * inverse_n;
        }
    }
    __syncwarp();

    constexpr int KEPT = 16;  // up to 64 atoms the logits stay in registers, else they are read twice
    // Softmax sums of every action at s' and, as item n, of the taken action at s.
    float top, sum, expectation;
    uint32_t best_key = 0;
    int best = 0;
    for (int i = 0; i <= n; i += 8) {
        const int item = min(i + (lane >> 2), n);
        const float *logit = item < n ? x.s_next + (first + item) * N : x.s + taken * N;
        const float *base = item < n ? base_next : base_s;
        auto logit_at = [&](int t) {
            const int j = (lane & 3) + 4 * t;
            return j < N ? base[j] + logit[j] : -INFINITY;
        };
        float y[KEPT];
        top = -INFINITY;
#pragma unroll(PER <= 2 ? KEPT : 4)
        for (int t = 0; t < 8 * PER; ++t) {
            const float z = logit_at(t);
            if (8 * PER == KEPT) y[t % KEPT] = z;
            top = z > top ? z : top;  // leaves NaN out: the sums do not
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        sum = expectation = 0.0f;
#pragma unroll(PER <= 2 ? KEPT : 4)
        for (int t = 0; t < 8 * PER; ++t) {
            const float e = expf((8 * PER == KEPT ? y[t % KEPT] : logit_at(t)) - top);
            sum += e;
            expectation += e * x.atom((lane & 3) + 4 * t);
        }
#pragma unroll
        for (int step = 1; step <= 2; ++step) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
            expectation += __shfl_xor_sync(0xffffffffu, expectation, step);
        }
        expectation /= sum;
        const bool next = i + (lane >> 2) < n;
        if (next && (lane & 3) == 0) guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, x.row, expectation, x.q_limit);
        const uint32_t key = next ? ordered(expectation) : 0, highest = __reduce_max_sync(0xffffffffu, key);
        const uint32_t who = __ballot_sync(0xffffffffu, key == highest);
        if (highest > best_key) best_key = highest, best = i + ((__ffs((int)who) - 1) >> 2);  // ties: the lowest index
    }
    // Item n is in the last round, and in its last lanes.
    const float log_sum = __shfl_sync(0xffffffffu, top + logf(sum), 31);
    const float q = __shfl_sync(0xffffffffu, expectation, 31);

    // Double DQN (van Hasselt 2016): the online network chose at s', the target network values.
    float next[PER], log_p[PER], p[PER], highest = -INFINITY;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + 32 * k;
        next[k] = j < N ? p_next[j] + x.target[(first + best) * N + j] : -INFINITY;
        log_p[k] = j < N ? base_s[j] + x.s[taken * N + j] - log_sum : 0.0f;
        highest = next[k] > highest ? next[k] : highest;
    }
    highest = warp_max(highest);
    float total[1] = {};
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        next[k] = expf(next[k] - highest);
        p[k] = lane + 32 * k < N ? expf(log_p[k]) : 0.0f;
        total[0] += next[k];
    }
    warp_sums(total);
    const float inverse_total = 1.0f / total[0];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        next[k] *= inverse_total;
        if (lane + 32 * k < N) p_next[lane + 32 * k] = next[k];
    }
    __syncwarp();

    float m[PER];
    const float c = (x.ret + x.discount * x.v_min - x.v_min) * (1.0f / x.delta_z);
    project<PER>(p_next, next, m, N, c, x.discount);

    // Sums over atoms: mass, y, cross-entropy, squares of the two gradient parts before their factors, mass on the edges.
    float sums[6] = {};
    bool spike = false, positive = false;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + 32 * k;
        if (j < N) {
            const float smooth = x.keep * m[k] + x.uniform, ce = p[k] - smooth, mse = p[k] * (x.atom(j) - q);
            sums[0] += m[k], sums[1] += m[k] * x.atom(j), sums[2] -= smooth * log_p[k];
            sums[3] += ce * ce, sums[4] += mse * mse;
            if (j == 0 || j == N - 1) sums[5] += m[k];
            spike = spike || m[k] > x.spike_mass, positive = positive || log_p[k] > 1e-6f;
        }
    }
    warp_sums(sums);
    const float y = sums[1], ce = sums[2], error = q - y;
    const float scale = x.weight * a.branch_scale / (float)a.B;  // of one branch's gradient
    const float ce_scale = scale * x.alpha, mse_scale = scale * (1.0f - x.alpha) * 2.0f * error;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + 32 * k;
        if (j < N) {
            const float ce_part = ce_scale * (p[k] - (x.keep * m[k] + x.uniform));
            const float mse_part = mse_scale * p[k] * (x.atom(j) - q), d = ce_part + mse_part;
            const int64_t at = ((int64_t)x.row * K + b) * N + j;
            base_s[j] = d, base_next[j] = m[k];
            if (a.target) a.target[at] = m[k];
            if (a.ce_grad) a.ce_grad[at] = ce_part;
            if (a.mse_grad) a.mse_grad[at] = mse_part;
            if (a.dlogits) {  // A's gradient is d - mean_a d, and only the taken action has a d
                float *out = a.dlogits + (int64_t)x.row * a.Np + first * N + j;
#pragma unroll(PER <= 2 ? 4 : 1)
                for (int i = 0; i < n; ++i) out[i * N] = ((first + i == taken ? 1.0f : 0.0f) - inverse_n) * d;
            }
        }
    }
    spike = __any_sync(0xffffffffu, spike), positive = __any_sync(0xffffffffu, positive);
    if (positive) {
        float most = -INFINITY;
#pragma unroll
        for (int k = 0; k < PER; ++k)
            if (lane + 32 * k < N) most = log_p[k] > most ? log_p[k] : most;
        most = warp_max(most);
        if (lane == 0) guard_raise(a.guard, GUARD_DDQN, CHECK_LOG_PROBABILITY, x.row, most);
    }
    if (lane == 0) {
        const float mean = 1.0f / (float)K;
        const bool terminal = x.discount == 0.0f;
        stats[STAT_Q_MIN] = stats[STAT_Q_MAX] = q;
        stats[STAT_LOSS] = x.weight * a.branch_scale * (x.alpha * ce + (1.0f - x.alpha) * error * error);
        stats[STAT_CE] = ce * mean;
        stats[STAT_MSE] = error * error * mean;
        stats[STAT_TD_ERROR] = fabsf(error) * mean;
        stats[STAT_Q] = q * mean;
        stats[STAT_TARGET] = y * mean;
        stats[STAT_WEIGHT] = b == 0 ? x.weight : 0.0f;
        stats[STAT_EDGE_MASS] = sums[5] * mean;
        stats[STAT_SPIKES] = spike && !terminal ? mean : 0.0f;
        stats[STAT_NON_TERMINAL] = b == 0 && !terminal ? 1.0f : 0.0f;
        stats[STAT_CE_NORM2] = ce_scale * ce_scale * sums[3];
        stats[STAT_MSE_NORM2] = mse_scale * mse_scale * sums[4];
        stats[STAT_Q_CLIPPED] = fabsf(q) > x.q_clip ? 1.0f : 0.0f;
        stats[STATS - 1] = 0.0f;
        a.next_action[x.row * K + b] = best;
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, x.row, q, x.q_limit);
        guard_mass(a.guard, GUARD_DDQN, x.row, sums[0]);
        guard_finite(a.guard, GUARD_DDQN, x.row, ce);
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, x.row, y, x.q_limit);
    }
}

FX_DEVICE void c51_row_gpu(const c51_loss_args &a, float *shared) {
    const int K = a.K, N = a.N, Np = a.Np;
    c51_row x;
    x.row = (int)blockIdx.x;
    x.s = a.logits + (int64_t)x.row * Np;
    x.s_next = x.s + (int64_t)a.B * Np;
    x.target = x.s_next + (int64_t)a.B * Np;
    float *staged = shared, *base = 3 * Np <= C51_STAGE_FLOATS ? shared + 3 * Np : shared;  // (3, K, N)
    float *stats = base + 3 * K * N;                                                        // (K, STATS)
    const bool stage = base != shared;
    if (stage) {
        FX_FOR(q, Np / 4) {
            copy_async(staged + 4 * q, x.s + 4 * q);
            copy_async(staged + Np + 4 * q, x.s_next + 4 * q);
            copy_async(staged + 2 * Np + 4 * q, x.target + 4 * q);
        }
    }
    const step_block &step = *a.step;
    const float priority = a.priority[x.row];  // 0: nothing could be drawn, a fault; the row then weighs nothing
    x.action = a.action[x.row], x.ret = a.ret[x.row], x.discount = a.discount[x.row];
    x.v_min = step.v_min, x.delta_z = step.delta_z, x.alpha = step.alpha_c51;
    x.keep = 1.0f - step.label_smoothing, x.uniform = step.label_smoothing / (float)N;
    x.q_limit = q_limit(fmaxf(fabsf(x.v_min), fabsf(step.v_max)));
    x.spike_mass = step.spike_mass, x.q_clip = step.q_clip;
    x.weight = priority > 0.0f ? powf(__uint_as_float(step.min_priority) / priority, step.beta_per) : 0.0f;
    copy_async_wait();
    __syncthreads();

    if (stage) x.s = staged, x.s_next = staged + Np, x.target = staged + 2 * Np;
    FX_ROWS(b, K) {
        float *base_s = base + b * N, *base_next = base_s + K * N, *p_next = base_next + K * N;
        if (N <= 64) c51_branch<2>(a, x, b, base_s, base_next, p_next, stats + b * STATS);
        else c51_branch<8>(a, x, b, base_s, base_next, p_next, stats + b * STATS);
    }
    __syncthreads();

    const float *d = base, *m = base + K * N;
    if (a.dlogits) {  // V's gradient is the sum over branches and actions
        float *out = a.dlogits + (int64_t)x.row * Np;
        FX_FOR(j, N) {
            float sum = 0.0f;
            for (int b = 0; b < K; ++b) sum += d[b * N + j];
            out[j] = sum;
        }
        FX_FOR(j, Np - (1 + a.S) * N) out[(1 + a.S) * N + j] = 0.0f;
    }
    float *rows = a.rows + (int64_t)x.row * a.W;
    FX_FOR(j, N) {
        float sum = 0.0f;
        for (int b = 0; b < K; ++b) sum += m[b * N + j];
        rows[STATS + j] = sum * (1.0f / (float)K);
    }
    FX_FOR(c, STATS) {
        float v = stats[c];
        for (int b = 1; b < K; ++b) v = combine_stats(c, v, stats[b * STATS + c]);
        rows[c] = v;
        if (c == STAT_TD_ERROR) a.td_error[x.row] = v;
        if (c == 0) {
            if (!(priority > 0.0f)) guard_raise(a.guard, GUARD_DDQN, CHECK_EMPTY, x.row, priority);
            guard_finite(a.guard, GUARD_DDQN, x.row, x.ret);
            guard_finite(a.guard, GUARD_DDQN, x.row, x.discount);
            guard_finite(a.guard, GUARD_DDQN, x.row, x.weight);
        }
    }
}

}  // namespace fx
