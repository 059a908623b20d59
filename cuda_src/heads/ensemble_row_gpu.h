// One row of ensemble_loss on a GPU. A warp takes one branch of one head at a time: H K of them at s, E K targets at s'. They meet
//   for the row's logits, which come to shared memory in one trip;
//   when all expected returns and targets are there: then the pairs' similarities, the row's disagreement, the heads' losses;
//   when those are: then a branch's gradient, by the warp alone;
//   when the sums over the actions are: then V's gradient, and the row's statistics.
// The importance weight's power passes in a warp that has no branch, where there is one.
#pragma once
#include "heads/actions_gpu.h"
#include "lib/branches.h"
#include "lib/guard.h"
#include "lib/rows.h"
#include "loss/projection.h"

namespace fx {

// A row in shared memory, behind its logits where they are staged; ensemble_floats below.
struct ensemble_row {
    const float *value, *next_value;  // (N,) V at s, and of theta- at s'
    const float *own, *more, *next;   // (S, N), (E, S, N), (E, S, N) advantages: at s, and of theta- at s'
    float *target;                    // (E, K, N) p of a* by theta-; then the projected target
    float *taken;                     // (E, K, N) log p of the taken action; then d of its own loss
    float *total;                     // (H, K, N) sum over the actions of d
    float *q;                         // (H, S) expected returns at s
    float *centred;                   // (H, S) c
    float *factor;                    // (H, S) dD/dQ
    float *alike;                     // (H, H) similarity of two heads; the diagonal is not written
    float *squares;                   // (H, K) of d
    float *loss, *ce;                 // (E, K) loss, weighted; cross-entropy
    float *weight;                    // (1,) importance weight
    float *deviation;  // (1,) of Q over the heads, mean over the actions

    FX_DEVICE ensemble_row(const ensemble_loss_args &a, float *shared, bool staged) {
        const int K = a.K, S = a.S, N = a.N, E = a.E, H = E + 1, row = (int)blockIdx.x;
        const float *logits = a.logits + (int64_t)row * a.Np, *heads = a.more + (int64_t)row * a.Mp;
        value = logits, more = heads;
        next_value = logits + (int64_t)2 * a.R * a.Np, next = heads + (int64_t)2 * a.B * a.Mp;
        if (staged) {
            const int width = ceil_div(N, 4) * 4;
            float *to[4] = {shared, shared + a.Np, shared + a.Np + a.Mp, shared + a.Np + 2 * a.Mp};
            stage_floats(to[0], value, a.Np), stage_floats(to[1], more, a.Mp);
            stage_floats(to[2], next, a.Mp), stage_floats(to[3], next_value, width);
            value = to[0], more = to[1], next = to[2], next_value = to[3], shared = to[3] + width;
        }
        own = value + N;
        target = shared, taken = target + E * K * N, total = taken + E * K * N;
        q = total + H * K * N, centred = q + H * S, factor = centred + H * S, alike = factor + H * S;
        squares = alike + H * H, loss = squares + H * K, ce = loss + E * K, weight = ce + E * K, deviation = weight + 1;
    }
};

// Where branch b of head h stands.
struct head_branch {
    int h, b, first, n, at;  // head, branch, its first action, how many; that action among those of all heads

    FX_DEVICE head_branch(const ensemble_loss_args &a, int r)
        : h(r / a.K),
          b(r - h * a.K),
          first(branch_first(a.branch_sizes, b)),
          n(branch_size(a.branch_sizes, b)),
          at(h * a.S + first) {}

    FX_DEVICE int taken(const ensemble_loss_args &a) const {
        return branch_action(a.branch_sizes, a.K, a.action[blockIdx.x], b);
    }
};

// Probabilities and expected returns of a branch's actions, their centred advantages, and log p of the one taken. p goes where the
// logits are, or, where these are not in shared memory, where the gradient will go.
template <int A, bool STAGED>
FX_DEVICE void ensemble_branch(const ensemble_loss_args &a, const ensemble_row &s, const lane_places<A> &place,
                            const atom_values &z, int r, float *gradient) {
    const int N = a.N, lane = lane_id();
    const head_branch of(a, r);
    const float *logit = of.h == 0 ? s.own + of.first * N : s.more + (of.at - a.S) * N;
    const lane_atoms<A> base = lane_base(place, s.value, logit, of.n, N);
    if (of.h > 0) {
        const float *chosen = logit + of.taken(a) * N;
        float *log_p = s.taken + (r - a.K) * N, x[A], top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int t = 0; t < A; ++t) top = fmaxf(top, x[t] = base.v[t] + chosen[place.at[t]]);
        top = warp_max(top);
#pragma unroll
        for (int t = 0; t < A; ++t) x[t] -= top, sum += exp2_fast(x[t] * LOG2_E);
        const float log_sum = __logf(warp_sum(sum));
#pragma unroll
        for (int t = 0; t < A; ++t)
            if (lane + 32 * t < N) log_p[lane + 32 * t] = x[t] - log_sum;
    }
    float *q = s.q + of.at;
    action_softmaxes<A, true>(place, base, logit, STAGED ? const_cast<float *>(logit) : gradient, q, of.n, N, z);
    float sum = 0.0f;
    for (int i = lane; i < of.n; i += 32) sum += q[i];
    const float mean = warp_sum(sum) / (float)of.n;
    for (int i = lane; i < of.n; i += 32) s.centred[of.at + i] = (q[i] - mean) / z.spacing;
}

// The target of one branch of a head beside the network's: what theta- says of a*, moved by the Bellman operator.
template <int A>
FX_DEVICE void ensemble_target(const ensemble_loss_args &a, const ensemble_row &s, const lane_places<A> &place,
                            const atom_values &z, int r) {
    const int N = a.N, lane = lane_id(), row = (int)blockIdx.x;
    const head_branch of(a, r);
    const float *logit = s.next + of.at * N, *chosen = logit + a.next_action[row * a.K + of.b] * N;
    const float ret = a.ret[row], discount = a.discount[row];
    const lane_atoms<A> base = lane_base(place, s.next_value, logit, of.n, N);
    float *p = s.target + r * N, x[A], top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int t = 0; t < A; ++t) top = fmaxf(top, x[t] = base.v[t] + chosen[place.at[t]]);
    top = warp_max(top);
#pragma unroll
    for (int t = 0; t < A; ++t) x[t] = exp2_fast((x[t] - top) * LOG2_E), sum += x[t];
    sum = warp_sum(sum);
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int t = 0; t < A; ++t) {
        x[t] *= inverse;
        if (lane + 32 * t < N) p[lane + 32 * t] = x[t];
    }
    __syncwarp();
    float m[A], edges[2];
    project(p, x, m, edges, N, (ret + discount * z.first - z.first) * (1.0f / z.spacing), discount, sum * inverse);
    __syncwarp();  // p has been read
    float *out = a.target ? a.target + ((int64_t)row * a.E * a.K + r) * N : nullptr;
#pragma unroll
    for (int t = 0; t < A; ++t)
        if (lane + 32 * t < N) {
            p[lane + 32 * t] = m[t];
            if (out) out[lane + 32 * t] = m[t];
        }
}

// Its loss, and d by the logits of the taken action, weighted.
template <int A>
FX_DEVICE void ensemble_head_loss(const ensemble_loss_args &a, const ensemble_row &s, const atom_values &z, int r) {
    const int N = a.N, lane = lane_id();
    const head_branch of(a, r);
    const step_block &step = *a.step;
    const float alpha = step.alpha_c51, keep = 1.0f - step.label_smoothing, uniform = step.label_smoothing / (float)N;
    const float *m = s.target + r * N, q = s.q[a.S + of.at + of.taken(a)];
    float *d = s.taken + r * N, sums[3] = {};  // mass, y, cross-entropy
#pragma unroll
    for (int t = 0; t < A; ++t) {
        const int j = lane + 32 * t;
        if (j < N) sums[0] += m[j], sums[1] += m[j] * z(j), sums[2] -= (keep * m[j] + uniform) * d[j];
    }
    warp_sums(sums);
    const float y = sums[1], error = q - y, scale = s.weight[0] * a.branch_scale / (float)a.E;
    const float ce_scale = scale / (float)a.B * alpha, mse_scale = scale / (float)a.B * (1.0f - alpha) * 2.0f * error;
#pragma unroll
    for (int t = 0; t < A; ++t) {
        const int j = lane + 32 * t;
        if (j >= N) continue;
        const float p = exp2_fast(d[j] * LOG2_E);
        d[j] = ce_scale * (p - (keep * m[j] + uniform)) + mse_scale * p * (z(j) - q);
    }
    if (lane == 0) {
        const uint32_t row = blockIdx.x;
        const float limit = q_limit(fmaxf(fabsf(step.v_min), fabsf(step.v_max)));
        s.loss[r] = scale * (alpha * sums[2] + (1.0f - alpha) * error * error), s.ce[r] = sums[2];
        guard_mass(a.guard, GUARD_AUX, row, sums[0]);
        guard_finite(a.guard, GUARD_AUX, row, sums[2]);
        guard_bound(a.guard, GUARD_AUX, CHECK_Q_RANGE, row, q, limit);
        guard_bound(a.guard, GUARD_AUX, CHECK_Q_RANGE, row, y, limit);
    }
}

// Similarity of one pair of heads, h < k; behind the last pair the disagreement of all.
FX_DEVICE void ensemble_pair(const ensemble_loss_args &a, const ensemble_row &s, int pair) {
    const int S = a.S, H = a.E + 1, lane = lane_id();
    int h = 0;
    for (; h < H - 1 && pair >= H - 1 - h; ++h) pair -= H - 1 - h;
    const int k = h + 1 + pair;
    float sum = 0.0f;
    if (k < H) {
        const float *one = s.centred + h * S, *other = s.centred + k * S;
        for (int i = lane; i < S; i += 32) sum += (one[i] - other[i]) * (one[i] - other[i]);
        const float same = expf(-warp_sum(sum) / (2.0f * (float)S * a.spread * a.spread));
        if (lane == 0) s.alike[h * H + k] = s.alike[k * H + h] = same;
        return;
    }
    for (int i = lane; i < S; i += 32) {
        float mean = 0.0f, squares = 0.0f;
        for (int j = 0; j < H; ++j) mean += s.q[j * S + i];
        mean /= (float)H;
        for (int j = 0; j < H; ++j) squares += (s.q[j * S + i] - mean) * (s.q[j * S + i] - mean);
        sum += sqrtf(squares / (float)H);
    }
    sum = warp_sum(sum);
    if (lane == 0) s.deviation[0] = sum / (float)S;
}

// The gradient of a branch's actions, of which the similarity has a share in every one.
template <int A, bool STAGED>
FX_DEVICE void ensemble_gradient(const ensemble_loss_args &a, const ensemble_row &s, const atom_values &z, int r,
                              float *out) {
    const int S = a.S, N = a.N, H = a.E + 1, lane = lane_id();
    const head_branch of(a, r);
    const float pairs = 0.5f * (float)(H * a.E);
    const float slope = a.diversity / (float)a.B / (pairs * (float)S * a.spread * a.spread * z.spacing);
    for (int i = of.at + lane; i < of.at + of.n; i += 32) {
        float sum = 0.0f;
        for (int k = 0; k < H; ++k)
            if (k != of.h) sum += s.alike[of.h * H + k] * (s.centred[i + (k - of.h) * S] - s.centred[i]);
        s.factor[i] = slope * sum;
    }
    __syncwarp();
    const float *logits = of.h == 0 ? s.own + of.first * N : s.more + (of.at - S) * N;
    const int taken = of.h == 0 ? -1 : of.taken(a);
    const float *own = of.h == 0 ? nullptr : s.taken + (r - a.K) * N;
    lane_atoms<A> total;
    const float squares = warp_sum(advantage_gradient<A>(STAGED ? logits : out, out, s.factor + of.at, s.q + of.at, own,
                                                         taken, of.n, N, z, total));
    if (lane == 0) s.squares[r] = squares;
#pragma unroll
    for (int t = 0; t < A; ++t)
        if (lane + 32 * t < N) s.total[r * N + lane + 32 * t] = total.v[t];
}

// What is reported of the row, by one warp.
FX_DEVICE void ensemble_statistics(const ensemble_loss_args &a, const ensemble_row &s) {
    const int E = a.E, K = a.K, H = E + 1, lane = lane_id();
    float sums[4] = {};  // loss, cross-entropy, similarity twice, squares
    for (int i = lane; i < E * K; i += 32) sums[0] += s.loss[i], sums[1] += s.ce[i];
    for (int i = lane; i < H * H; i += 32) sums[2] += i % (H + 1) ? s.alike[i] : 0.0f;  // all but the diagonal
    for (int i = lane; i < H * K; i += 32) sums[3] += s.squares[i];
    warp_sums(sums);
    if (lane) return;
    float *out = a.rows + (int64_t)blockIdx.x * ENSEMBLE_COLUMNS;
    const float alike = sums[2] / (float)(H * E);
    out[ENSEMBLE_LOSS] = sums[0] + a.diversity * alike;
    out[ENSEMBLE_CE] = sums[1] / (float)(E * K);
    out[ENSEMBLE_DISAGREEMENT] = s.deviation[0];
    out[ENSEMBLE_SIMILARITY] = alike;
    out[ENSEMBLE_NORM2] = sums[3];
}

template <int A, bool STAGED>
FX_DEVICE void ensemble_row_gpu(const ensemble_loss_args &a, float *shared) {
    const int K = a.K, S = a.S, N = a.N, E = a.E, H = E + 1, row = (int)blockIdx.x;
    const int warp = warp_id(), warps = fx::warps(), lane = lane_id();
    const ensemble_row s(a, shared, STAGED);
    const step_block &step = *a.step;
    const atom_values z{step.v_min, step.delta_z};
    const lane_places<A> place(N);
    float *part = a.part + (int64_t)row * a.Np, *dmore = a.dmore + (int64_t)row * a.Mp;
    if (warp == warps - 1) {
        const float priority = a.priority[row];  // 0: a fault, which ddqn raises; the row then weighs nothing
        const float weight =
            priority > 0.0f ? powf(__uint_as_float(step.min_priority) / priority, step.beta_per) : 0.0f;
        if (lane == 0) s.weight[0] = weight;
    }
    // Advantages' gradient of the branch r of all heads begins here.
    auto gradient = [&](int r) {
        const head_branch of(a, r);
        return of.h == 0 ? part + (1 + of.first) * N : dmore + (of.at - S) * N;
    };
    if (STAGED) await_staged();
    for (int r = warp; r < (H + E) * K; r += warps) {
        if (r < H * K) ensemble_branch<A, STAGED>(a, s, place, z, r, gradient(r));
        else ensemble_target<A>(a, s, place, z, r - H * K);
    }
    __syncthreads();
    for (int r = warp; r < E * K + H * E / 2 + 1; r += warps) {
        if (r < E * K) ensemble_head_loss<A>(a, s, z, r);
        else ensemble_pair(a, s, r - E * K);
    }
    __syncthreads();
    for (int r = warp; r < H * K; r += warps) ensemble_gradient<A, STAGED>(a, s, z, r, gradient(r));
    __syncthreads();
    if (warp == warps - 1) ensemble_statistics(a, s);
    sum_over_branches(part, s.total, H * K, S, N, a.Np);  // V is in every head and action
    for (int j = E * S * N + (int)threadIdx.x; j < a.Mp; j += (int)blockDim.x) dmore[j] = 0.0f;
}

}  // namespace fx
