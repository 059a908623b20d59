// One row of ensemble_loss on the host: the softmaxes of all actions are made again rather than stored, in vector code.
#pragma once
#include "lib/branches.h"
#include "lib/dueling.h"
#include "lib/guard.h"
#include "lib/rows.h"
#include "loss/projection.h"

namespace fx {

// A row in shared memory; Python sizes it (children/ensemble.py).
struct ensemble_row {
    float *base;       // (H, K, N) V - mean_a A at s
    float *next;       // (E, K, N) the same of theta- at s'; then p of a*
    float *m;          // (E, K, N) projected target; then d of the taken action
    float *total;      // (H, K, N) sum over the actions of d
    float *q;          // (H, S) expected returns at s
    float *top;        // (H, S) largest logit of each softmax
    float *inverse;    // (H, S) 1 / sum
    float *centred;    // (H, S) c; then the squares of d
    float *factor;     // (H, S) dD/dQ
    float *deviation;  // (S,) of Q over the heads
    float *alike;      // (H, H) similarity of two heads
    float *loss;       // (E, K) weighted
    float *ce;  // (E, K)

    FX_DEVICE ensemble_row(float *shared, int E, int K, int S, int N) {
        const int H = E + 1;
        base = shared, next = base + H * K * N, m = next + E * K * N, total = m + E * K * N;
        q = total + H * K * N, top = q + H * S, inverse = top + H * S, centred = inverse + H * S;
        factor = centred + H * S, deviation = factor + H * S, alike = deviation + S, loss = alike + H * H,
        ce = loss + E * K;
    }
};

// d by the logits of one action of a head: of the similarity, and of the head's own loss where it is the action taken.
struct action_gradient {
    const float *base, *logit, *own;  // (N,) each
    float top, inverse, factor, q, v_min, delta_z;
    float takes;  // 1: the action taken, of a head that has a loss here; else 0

    FX_DEVICE float operator()(int j) const {
        const float p = expf(base[j] + logit[j] - top) * inverse;
        return factor * p * (v_min + delta_z * (float)j - q) + takes * own[j];
    }
};

// Branch b of head e: its target, loss, and d by the logits of the taken action, weighted.
FX_DEVICE void head_loss(const ensemble_loss_args &a, const ensemble_row &s, int row, int i, float weight) {
    const int K = a.K, N = a.N, e = i / K, b = i - e * K;
    const step_block &step = *a.step;
    const float v_min = step.v_min, delta_z = step.delta_z, alpha = step.alpha_c51;
    const float keep = 1.0f - step.label_smoothing, uniform = step.label_smoothing / (float)N;
    const float limit = q_limit(fmaxf(fabsf(v_min), fabsf(step.v_max)));
    const int first = branch_first(a.branch_sizes, b);
    auto atom = [&](int j) { return v_min + delta_z * (float)j; };

    // The target network's distribution of a*, moved by the Bellman operator.
    const float *x = a.more + ((int64_t)(2 * a.B + row)) * a.Mp + (e * a.S + first + a.next_action[row * K + b]) * N;
    float *p_next = s.next + i * N, *m = s.m + i * N;
    const softmax_row next = lane_softmax(N, [&](int j) { return p_next[j] + x[j]; }, atom);
    const float inverse = 1.0f / next.sum, discount = a.discount[row];
    FX_LANES(j, N) p_next[j] = expf(p_next[j] + x[j] - next.top) * inverse;
    project_row(p_next, m, N, (a.ret[row] + discount * v_min - v_min) * (1.0f / delta_z), discount, next.sum * inverse);

    const float *logit =
        a.more + (int64_t)row * a.Mp + (e * a.S + first + branch_action(a.branch_sizes, K, a.action[row], b)) * N;
    const float *base = s.base + (K + i) * N;
    const softmax_row soft = lane_softmax(N, [&](int j) { return base[j] + logit[j]; }, atom);
    const float log_sum = soft.top + logf(soft.sum), q = soft.expectation;
    auto log_p = [&](int j) { return base[j] + logit[j] - log_sum; };
    const float mass = lane_sum(N, [&](int j) { return m[j]; });
    const float y = lane_sum(N, [&](int j) { return m[j] * atom(j); });
    const float ce = -lane_sum(N, [&](int j) { return (keep * m[j] + uniform) * log_p(j); });
    const float scale = weight * a.branch_scale / (float)a.E, per_row = scale / (float)a.B;
    const float mse_scale = per_row * (1.0f - alpha) * 2.0f * (q - y);
    if (a.target) FX_LANES(j, N) a.target[((int64_t)row * a.E * K + i) * N + j] = m[j];
    FX_LANES(j, N) {
        const float p = expf(log_p(j));
        m[j] = per_row * alpha * (p - (keep * m[j] + uniform)) + mse_scale * p * (atom(j) - q);
    }
    FX_LANE_0 {
        s.loss[i] = scale * (alpha * ce + (1.0f - alpha) * (q - y) * (q - y));
        s.ce[i] = ce;
        guard_mass(a.guard, GUARD_AUX, (uint32_t)row, mass);
        guard_finite(a.guard, GUARD_AUX, (uint32_t)row, ce);
        guard_bound(a.guard, GUARD_AUX, CHECK_Q_RANGE, (uint32_t)row, q, limit);
        guard_bound(a.guard, GUARD_AUX, CHECK_Q_RANGE, (uint32_t)row, y, limit);
    }
}

FX_DEVICE void ensemble_row_host(const ensemble_loss_args &a, int row, float *shared) {
    const int K = a.K, S = a.S, N = a.N, E = a.E, H = E + 1;
    const uint64_t sizes = a.branch_sizes;
    const ensemble_row s(shared, E, K, S, N);
    const float *value = a.logits + (int64_t)row * a.Np, *more = a.more + (int64_t)row * a.Mp;
    const float *next_value = value + (int64_t)2 * a.R * a.Np, *next_more = more + (int64_t)2 * a.B * a.Mp;
    const step_block &step = *a.step;
    const float v_min = step.v_min, delta_z = step.delta_z;
    const float priority = a.priority[row];  // 0: a fault, which ddqn raises; the row then weighs nothing
    const float weight = priority > 0.0f ? powf(__uint_as_float(step.min_priority) / priority, step.beta_per) : 0.0f;
    // Advantages of head h at s, (S, N): the network's own come first.
    auto advantages = [&](int h) { return h == 0 ? value + N : more + (h - 1) * S * N; };

    FX_ROWS(r, (H + E) * K) {
        const bool online = r < H * K;
        const int i = online ? r : r - H * K, h = i / K, b = i - h * K;
        const float *advantage = online ? advantages(h) : next_more + h * S * N;
        branch_base(online ? value : next_value, advantage + branch_first(sizes, b) * N, branch_size(sizes, b), N,
                    (online ? s.base : s.next) + i * N);
    }
    FX_ROWS(r, H * S + E * K) {
        if (r < H * S) {
            const int h = r / S, action = r - h * S;
            const float *v = s.base + (h * K + branch_of(sizes, action)) * N, *x = advantages(h) + action * N;
            const softmax_row soft =
                lane_softmax(N, [&](int j) { return v[j] + x[j]; }, [&](int j) { return v_min + delta_z * (float)j; });
            FX_LANE_0 s.q[r] = soft.expectation, s.top[r] = soft.top, s.inverse[r] = 1.0f / soft.sum;
        } else {
            head_loss(a, s, row, r - H * S, weight);
        }
    }

    // Centred advantages in atoms, the similarity of each pair, and its derivative by Q.
    FX_ROWS(r, H * K) {
        const int h = r / K, b = r - h * K, n = branch_size(sizes, b), at = h * S + branch_first(sizes, b);
        const float mean = lane_sum(n, [&](int i) { return s.q[at + i]; }) / (float)n;
        FX_LANES(i, n) s.centred[at + i] = (s.q[at + i] - mean) / delta_z;
    }
    FX_ROWS(r, H * H) {
        const float *one = s.centred + r / H * S, *other = s.centred + r % H * S;
        const float squares = lane_sum(S, [&](int i) { return (one[i] - other[i]) * (one[i] - other[i]); });
        FX_LANE_0 s.alike[r] = expf(-squares / (2.0f * (float)S * a.spread * a.spread));
    }
    FX_FOR(i, S) {
        float mean = 0.0f, squares = 0.0f;
        for (int h = 0; h < H; ++h) mean += s.q[h * S + i];
        mean /= (float)H;
        for (int h = 0; h < H; ++h) squares += (s.q[h * S + i] - mean) * (s.q[h * S + i] - mean);
        s.deviation[i] = sqrtf(squares / (float)H);
    }
    const float pairs = 0.5f * (float)(H * E);
    FX_FOR(i, H * S) {
        const int h = i / S, action = i - h * S;
        float sum = 0.0f;
        for (int k = 0; k < H; ++k) sum += s.alike[h * H + k] * (s.centred[k * S + action] - s.centred[i]);
        s.factor[i] = a.diversity / (float)a.B * sum / (pairs * (float)S * a.spread * a.spread * delta_z);
    }

    auto gradient = [&](int h, int b, int i) {
        const int at = h * S + i, taken = branch_first(sizes, b) + branch_action(sizes, K, a.action[row], b);
        const float *own = s.m + (h > 0 ? (h - 1) * K + b : 0) * N;
        return action_gradient{s.base + (h * K + b) * N,
                               advantages(h) + i * N,
                               own,
                               s.top[at],
                               s.inverse[at],
                               s.factor[at],
                               s.q[at],
                               v_min,
                               delta_z,
                               h > 0 && i == taken ? 1.0f : 0.0f};
    };
    FX_ROWS(r, H * K) {
        const int h = r / K, b = r - h * K, n = branch_size(sizes, b), first = branch_first(sizes, b);
        float *total = s.total + r * N;
        FX_LANES(j, N) total[j] = 0.0f;
        for (int i = 0; i < n; ++i) {
            const action_gradient d = gradient(h, b, first + i);
            FX_LANES(j, N) total[j] += d(j);
        }
    }
    float *part = a.part + (int64_t)row * a.Np, *dmore = a.dmore + (int64_t)row * a.Mp;
    FX_ROWS(r, 1 + H * S) {
        if (r == H * S) {  // V is in every head and action
            FX_LANES(j, N) {
                float sum = 0.0f;
                for (int i = 0; i < H * K; ++i) sum += s.total[i * N + j];
                part[j] = sum;
            }
        } else {
            const int h = r / S, action = r - h * S, b = branch_of(sizes, action);
            const float inverse = 1.0f / (float)branch_size(sizes, b), *total = s.total + (h * K + b) * N;
            const action_gradient gradient_of = gradient(h, b, action);
            float *out = h == 0 ? part + N + action * N : dmore + ((h - 1) * S + action) * N;
            const float squares = lane_sum(N, [&](int j) {
                const float d = gradient_of(j);
                out[j] = d - total[j] * inverse;
                return d * d;
            });
            FX_LANE_0 s.centred[r] = squares;
        }
    }
    FX_FOR(j, a.Np - (1 + S) * N) part[(1 + S) * N + j] = 0.0f;
    FX_FOR(j, a.Mp - E * S * N) dmore[E * S * N + j] = 0.0f;
    FX_FOR(only, 1) {
        float *out = a.rows + row * ENSEMBLE_COLUMNS, loss = 0.0f, ce = 0.0f, deviation = 0.0f, alike = 0.0f,
              squares = 0.0f;
        for (int i = 0; i < E * K; ++i) loss += s.loss[i], ce += s.ce[i];
        for (int i = 0; i < S; ++i) deviation += s.deviation[i];
        for (int h = 0; h < H; ++h)
            for (int k = 0; k < h; ++k) alike += s.alike[h * H + k];
        for (int i = 0; i < H * S; ++i) squares += s.centred[i];
        out[ENSEMBLE_LOSS] = loss + a.diversity * alike / pairs;
        out[ENSEMBLE_CE] = ce / (float)(E * K);
        out[ENSEMBLE_DISAGREEMENT] = deviation / (float)S;
        out[ENSEMBLE_SIMILARITY] = alike / pairs;
        out[ENSEMBLE_NORM2] = squares;
    }
}

}  // namespace fx
