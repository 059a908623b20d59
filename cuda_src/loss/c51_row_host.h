// One row of c51_loss on the host: one thread, loops over the atoms that become vector code, all branches of a phase together.
#pragma once
#include "lib/guard.h"
#include "loss/head_gradient.h"
#include "loss/projection.h"

namespace fx {

// What the branches leave for the row's statistics.
enum { B_CE, B_Q, B_Y, B_EDGE, B_PEAK, B_CE2, B_MSE2, B_LOG_SUM, BRANCH_STATS };
static_assert(BRANCH_STATS <= STATS, "the launch sizes shared memory by it");

inline void c51_row_host(const c51_loss_args &a, int row, float *shared) {
    const int B = a.B, K = a.K, S = a.S, N = a.N, KN = K * N;
    const uint64_t sizes = a.branch_sizes;
    const step_block &step = *a.step;
    float *base = shared;        // (3, K, N) V - mean_a A of each pass; then log p, p of the taken actions; p of a*
    float *m = base + 3 * KN;    // (K, N) projected target
    float *q_next = m + KN;      // (S,) expected return of each action at s'
    float *branch = q_next + S;  // (K, BRANCH_STATS)
    float *log_p = base, *p_taken = base + KN, *p_next = base + 2 * KN;

    const float *logits = a.logits + (int64_t)row * a.Np;
    const int64_t pass_stride = (int64_t)a.R * a.Np;
    const float v_min = step.v_min, delta_z = step.delta_z;
    const float z_max = fmaxf(fabsf(v_min), fabsf(step.v_max));
    const float limit = q_limit(z_max);
    const int action = a.action[row];
    const float ret = a.ret[row], discount = a.discount[row];
    const float alpha = step.alpha_c51, smoothing = step.label_smoothing;

    // V - mean_a A for each pass and branch, kept so that each action adds its A.
    FX_ROWS(r, 3 * K) {
        int pass = r / K, b = r - pass * K, n = branch_size(sizes, b);
        const float *value = logits + pass * pass_stride;
        const float *advantage = value + (1 + branch_first(sizes, b)) * N;
        float inverse = 1.0f / (float)n;
        float *out = base + r * N;
        FX_LANES(j, N) out[j] = 0.0f;
        for (int i = 0; i < n; ++i) FX_LANES(j, N) out[j] += advantage[i * N + j];
        FX_LANES(j, N) out[j] = value[j] - out[j] * inverse;
    }

    // Expected return of every action at s' by the online network; log-probabilities of the taken actions at s.
    auto atom = [&](int j) { return v_min + delta_z * (float)j; };
    FX_ROWS(r, S + K) {
        if (r < S) {
            const float *v = base + (K + branch_of(sizes, r)) * N, *x = logits + pass_stride + (1 + r) * N;
            float q = lane_softmax(N, [&](int j) { return v[j] + x[j]; }, atom).expectation;
            FX_LANE_0 {
                q_next[r] = a.next_values ? q + a.next_values[(int64_t)row * S + r] : q;
                guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, row, q, limit);
            }
        } else {
            int b = r - S, taken = branch_first(sizes, b) + branch_action(sizes, K, action, b);
            const float *x = logits + (1 + taken) * N;
            float *v = base + b * N;
            softmax_row soft = lane_softmax(N, [&](int j) { return v[j] + x[j]; }, atom);
            float log_sum = soft.top + logf(soft.sum);
            FX_LANES(j, N) v[j] = v[j] + x[j] - log_sum;
            float highest = lane_max_number(N, [&](int j) { return v[j]; });
            FX_LANE_0 {
                branch[b * BRANCH_STATS + B_Q] = soft.expectation;
                branch[b * BRANCH_STATS + B_LOG_SUM] = log_sum;
                if (!(highest <= 1e-6f)) guard_raise(a.guard, GUARD_DDQN, CHECK_LOG_PROBABILITY, row, highest);
                if (!(fabsf(soft.expectation) <= limit))
                    guard_raise(a.guard, GUARD_DDQN, finite(soft.expectation) ? CHECK_Q_RANGE : CHECK_NON_FINITE, row,
                                soft.expectation);
            }
        }
    }

    // Double DQN: the online network chooses at s', the target network values.
    FX_ROWS(b, K) {
        int first = branch_first(sizes, b), n = branch_size(sizes, b);
        int best = lane_argmax(n, [&](int i) { return q_next[first + i]; }).i;  // ties: the lowest index
        best = best < n ? best : 0;
        const float *x = logits + 2 * pass_stride + (1 + first + best) * N;
        float *v = p_next + b * N;
        softmax_row soft = lane_softmax(N, [&](int j) { return v[j] + x[j]; }, atom);
        float inverse = 1.0f / soft.sum;
        FX_LANES(j, N) v[j] = expf(v[j] + x[j] - soft.top) * inverse;
        const float *lp = log_p + b * N;
        float *p = p_taken + b * N;  // pass 1 of base is no longer needed
        FX_LANES(j, N) p[j] = expf(lp[j]);
        FX_LANE_0 a.next_action[row * K + b] = best;
    }

    const float inverse_delta = 1.0f / delta_z;
    const float c = (ret + discount * v_min - v_min) * inverse_delta;
    constexpr int GROUP = 4;
    const int tiles = ceil_div(N, TILE), groups = ceil_div(K, GROUP);
    for (int i = 0; i < tiles * groups; ++i) {
        int group = i / tiles, j0 = (i - group * tiles) * TILE;
        const float *from[GROUP];
        float *to[GROUP];
        for (int k = 0; k < GROUP; ++k) {  // a short last group does its last branch again
            int b = group * GROUP + k < K ? group * GROUP + k : K - 1;
            from[k] = p_next + b * N;
            to[k] = m + b * N;
        }
        project_tile<GROUP>(from, to, N, j0, c, discount);
    }

    const float priority = a.priority[row];  // 0: nothing could be drawn, a fault; the row then weighs nothing
    const float weight = priority > 0.0f ? powf(__uint_as_float(step.min_priority) / priority, step.beta_per) : 0.0f;
    const float scale = weight * a.branch_scale / (float)B;  // of one branch's gradient
    const float uniform = smoothing / (float)N, keep = 1.0f - smoothing;
    FX_ROWS(b, K) {
        const float *lp = log_p + b * N;
        float *p = p_taken + b * N, *target = m + b * N;
        float mass = lane_sum(N, [&](int j) { return target[j]; });
        float y = lane_sum(N, [&](int j) { return target[j] * atom(j); });
        float peak = lane_max_number(N, [&](int j) { return target[j]; });
        float probabilities = lane_sum(N, [&](int j) { return p[j]; });
        float ce = -lane_sum(N, [&](int j) { return (keep * target[j] + uniform) * lp[j]; });
        float q = branch[b * BRANCH_STATS + B_Q];
        float ce_scale = scale * alpha, mse_scale = scale * (1.0f - alpha) * 2.0f * (q - y);
        float ce2 = lane_sum(N, [&](int j) {
            float d = ce_scale * (p[j] - (keep * target[j] + uniform));
            return d * d;
        });
        float mse2 = lane_sum(N, [&](int j) {
            float d = mse_scale * p[j] * (atom(j) - q);
            return d * d;
        });
        if (a.target) FX_LANES(j, N) a.target[(int64_t)row * KN + b * N + j] = target[j];
        if (a.ce_grad)
            FX_LANES(j, N) a.ce_grad[(int64_t)row * KN + b * N + j] = ce_scale * (p[j] - (keep * target[j] + uniform));
        if (a.mse_grad) FX_LANES(j, N) a.mse_grad[(int64_t)row * KN + b * N + j] = mse_scale * p[j] * (atom(j) - q);
        FX_LANE_0 {
            float *s = branch + b * BRANCH_STATS;
            s[B_CE] = ce;
            s[B_Y] = y;
            s[B_EDGE] = target[0] + target[N - 1];
            s[B_PEAK] = peak;
            s[B_CE2] = ce2;
            s[B_MSE2] = mse2;
            guard_mass(a.guard, GUARD_DDQN, row, mass);
            guard_probabilities(a.guard, GUARD_DDQN, row, probabilities, s[B_LOG_SUM]);
            guard_finite(a.guard, GUARD_DDQN, row, ce);
            guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, row, y, limit);
        }
        // d of the head gradient, where nothing needs p any more
        FX_LANES(j, N) p[j] = ce_scale * (p[j] - (keep * target[j] + uniform)) + mse_scale * p[j] * (atom(j) - q);
    }

    if (a.dlogits)
        write_head_gradient(a.dlogits + (int64_t)row * a.Np, K, S, N, a.Np, sizes, action,
                            [&](int b, int j) { return p_taken[b * N + j]; });

    float *out = a.rows + (int64_t)row * a.W;
    const float mean = 1.0f / (float)K;
    for (int j = 0; j < N; ++j) {
        float sum = 0.0f;
        for (int b = 0; b < K; ++b) sum += m[b * N + j];
        out[STATS + j] = sum * mean;
    }
    {
        float ce = 0, mse = 0, td = 0, q = 0, y = 0, edge = 0, ce2 = 0, mse2 = 0, spikes = 0, clipped = 0;
        float low = INFINITY, high = -INFINITY;
        for (int b = 0; b < K; ++b) {
            const float *s = branch + b * BRANCH_STATS;
            float error = s[B_Q] - s[B_Y];
            ce += s[B_CE], mse += error * error, td += fabsf(error), q += s[B_Q], y += s[B_Y], edge += s[B_EDGE];
            ce2 += s[B_CE2], mse2 += s[B_MSE2];
            spikes += s[B_PEAK] > step.spike_mass ? 1.0f : 0.0f;
            clipped += fabsf(s[B_Q]) > step.q_clip ? 1.0f : 0.0f;
            low = op_min()(low, s[B_Q]), high = op_max()(high, s[B_Q]);
        }
        bool terminal = discount == 0.0f;
        out[STAT_Q_MIN] = low;
        out[STAT_Q_MAX] = high;
        out[STAT_LOSS] = weight * a.branch_scale * (alpha * ce + (1.0f - alpha) * mse);
        out[STAT_CE] = ce * mean;
        out[STAT_MSE] = mse * mean;
        out[STAT_TD_ERROR] = td * mean;
        out[STAT_Q] = q * mean;
        out[STAT_TARGET] = y * mean;
        out[STAT_WEIGHT] = weight;
        out[STAT_EDGE_MASS] = edge * mean;
        out[STAT_SPIKES] = terminal ? 0.0f : spikes * mean;
        out[STAT_NON_TERMINAL] = terminal ? 0.0f : 1.0f;
        out[STAT_CE_NORM2] = ce2;
        out[STAT_MSE_NORM2] = mse2;
        out[STAT_Q_CLIPPED] = clipped;
        out[STATS - 1] = 0.0f;
        a.td_error[row] = td * mean;
        if (!(priority > 0.0f)) guard_raise(a.guard, GUARD_DDQN, CHECK_EMPTY, row, priority);
        guard_finite(a.guard, GUARD_DDQN, row, ret);
        guard_finite(a.guard, GUARD_DDQN, row, discount);
        guard_finite(a.guard, GUARD_DDQN, row, weight);
    }
}

}  // namespace fx
