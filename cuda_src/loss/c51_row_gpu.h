// One row of c51_loss on a GPU: a warp a branch, and one for the row itself.
//
// A branch's distributions stay in the registers of its warp: lane l holds the atoms l, l + 32, ..., A of them. The warps meet once
// for the logits and once for what they add up. What such a kernel costs is, in a small batch, dependent trips to memory and the
// instructions that one warp must run one after the other; in a large one, instructions altogether. So
//   the row's logits come to shared memory in one trip, 16 bytes a copy: addresses there are 32 bits wide, and half of the
//   instructions of a first version, which read them in place, were addresses;
//   lanes without an atom read another's, and -infinity stands in their base, so that no load has a condition;
//   the actions at s' are taken four at a time, and their sums share the shuffles (gather_sums): 32 instructions for eight sums;
//   the exponential is the device's own, base 2 (2 ulp; Cephes' polynomial of the host has 1);
//   the importance weight's power passes in a warp of its own.
#pragma once
#include "lib/copy_async.h"
#include "lib/dueling.h"
#include "lib/guard.h"
#include "lib/rows.h"
#include "lib/warp.h"
#include "loss/combine_stats.h"
#include "loss/head_gradient.h"
#include "loss/projection.h"

namespace fx {

// A row of shared memory.
struct c51_row {
    const float *logits[3];  // (Np,) of each pass, here or where they lie
    float *m;                // (K, N) projected target
    float *d;                // (K, N) p of the target network; then d, both parts, without the importance weight
    float *stats;            // (K, STATS) each branch's share of the row's statistics
    float *weight;  // (3,) importance weight; times the branch scale; and over B

    FX_DEVICE c51_row(const c51_loss_args &a, float *shared, bool staged) {
#pragma unroll
        for (int p = 0; p < 3; ++p)
            logits[p] = staged ? shared + p * a.Np : a.logits + ((int64_t)p * a.R + blockIdx.x) * a.Np;
        stats = staged ? shared + 3 * a.Np : shared;
        m = stats + a.K * STATS, d = m + a.K * a.N, weight = d + a.K * a.N;
    }
};

// What the step says; q_limit bounds |Q|.
struct c51_settings {
    float v_min, delta_z, q_limit, alpha, smoothing, spike_mass, q_clip;

    FX_DEVICE explicit c51_settings(const step_block &step)
        : v_min(step.v_min),
          delta_z(step.delta_z),
          alpha(step.alpha_c51),
          smoothing(step.label_smoothing),
          spike_mass(step.spike_mass),
          q_clip(step.q_clip) {
        q_limit = fx::q_limit(fmaxf(fabsf(v_min), fabsf(step.v_max)));
    }
    FX_DEVICE float atom(int j) const { return v_min + delta_z * (float)j; }
};

template <int A>
struct lane_distribution {
    lane_atoms<A> shifted, p;  // logit - top; probability
    float log_sum, expectation, mass;
};

// Softmax of base + logit (N,), and its expectation.
template <int A>
FX_DEVICE lane_distribution<A> distribution(const c51_settings &z, const lane_places<A> &place, const lane_atoms<A> &base,
                                         const float *logit) {
    lane_distribution<A> out;
    float top = -INFINITY, sums[2] = {};
#pragma unroll
    for (int i = 0; i < A; ++i) top = fmaxf(top, out.shifted.v[i] = base.v[i] + logit[place.at[i]]);
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < A; ++i) {
        out.shifted.v[i] -= top;
        out.p.v[i] = exp2_fast(out.shifted.v[i] * LOG2_E);
        sums[0] += out.p.v[i], sums[1] += out.p.v[i] * z.atom(lane_id() + 32 * i);
    }
    warp_sums(sums);
    const float inverse = 1.0f / sums[0];
#pragma unroll
    for (int i = 0; i < A; ++i) out.p.v[i] *= inverse;
    out.log_sum = __logf(sums[0]), out.expectation = sums[1] * inverse, out.mass = sums[0] * inverse;
    return out;
}

// The online network's choice at s' among n actions: the first of those whose expected return, with `more` of other heads added
// where there are some, is largest.
template <int A>
FX_DEVICE int greedy(const c51_loss_args &a, const c51_settings &z, const lane_places<A> &place, const lane_atoms<A> &base,
                  const float *logits, const float *more, int n) {
    constexpr int TOGETHER = 4;  // actions
    const int lane = lane_id(), N = a.N;
    uint32_t highest = 0;
    int best = 0;
#pragma unroll 1
    for (int first = 0; first < n; first += TOGETHER) {
        float x[TOGETHER][A], top[TOGETHER], sums[2 * TOGETHER] = {};
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {  // beyond the last: the last again, which never comes first
            const float *logit = logits + min(first + t, n - 1) * N;
            top[t] = -INFINITY;
#pragma unroll
            for (int i = 0; i < A; ++i) top[t] = fmaxf(top[t], x[t][i] = base.v[i] + logit[place.at[i]]);
        }
        const float tops = gather_max(top);
#pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            const float largest = __shfl_sync(ALL_LANES, tops, 8 * t) * LOG2_E;
#pragma unroll
            for (int i = 0; i < A; ++i) {
                const float e = exp2_fast(x[t][i] * LOG2_E - largest);
                sums[2 * t] += e, sums[2 * t + 1] += e * z.atom(lane + 32 * i);
            }
        }
        const float mine = gather_sums(sums), other = __shfl_xor_sync(ALL_LANES, mine, 4);
        const float q = __fdividef(lane & 4 ? mine : other, lane & 4 ? other : mine);  // of action first + lane / 8
        if (!(fabsf(q) <= z.q_limit)) guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, blockIdx.x, q, z.q_limit);
        const float value = more ? q + more[min(first + lane / 8, n - 1)] : q;
        const uint32_t key = ordered(value), most = __reduce_max_sync(ALL_LANES, key);
        const uint32_t who = __ballot_sync(ALL_LANES, key == most);
        if (most > highest) highest = most, best = first + (__ffs((int)who) - 1) / 8;  // ties: the lowest index
    }
    return best;
}

// What the warp of a branch holds from one barrier of the block to the next.
template <int A>
struct c51_branch {
    int taken;            // action of the branch
    float ret, discount;  // of the row; loaded while the logits are on their way
    float m[A];           // projected target
    float ce[A], mse[A];  // the two parts of d

    FX_DEVICE void begin(const c51_loss_args &a, int b) {
        const int row = (int)blockIdx.x;
        taken = branch_action(a.branch_sizes, a.K, a.action[row], b);
        ret = a.ret[row], discount = a.discount[row];
    }
};

// Branch b: double DQN (van Hasselt 2016), projection, losses; what the row adds up goes to shared memory.
template <int A>
FX_DEVICE void c51_branch_losses(const c51_loss_args &a, const c51_row &s, int b, c51_branch<A> &branch) {
    const int lane = lane_id(), N = a.N, K = a.K, row = (int)blockIdx.x;
    const int n = branch_size(a.branch_sizes, b), first = branch_first(a.branch_sizes, b), taken = branch.taken;
    const float ret = branch.ret, discount = branch.discount;
    const c51_settings z(*a.step);
    const lane_places<A> place(N);
    float (&m)[A] = branch.m, (&ce)[A] = branch.ce, (&mse)[A] = branch.mse;

    // V - mean_a A of each pass (Wang 2016).
    const int actions = (1 + first) * N;  // where the branch's advantages begin
    lane_atoms<A> base[3] = {};
#pragma unroll(A > 2 ? 1 : 4)
    for (int i = 0, at = actions; i < n; ++i, at += N)
#pragma unroll
        for (int p = 0; p < 3; ++p)
#pragma unroll
            for (int t = 0; t < A; ++t) base[p].v[t] += s.logits[p][at + place.at[t]];
    const float inverse = 1.0f / (float)n;
#pragma unroll
    for (int p = 0; p < 3; ++p)
#pragma unroll
        for (int t = 0; t < A; ++t) {
            const float x = s.logits[p][place.at[t]] - base[p].v[t] * inverse;
            base[p].v[t] = lane + 32 * t < N ? x : -INFINITY;
        }

    // The online network chooses at s', the target network values.
    const int best = greedy(a, z, place, base[1], s.logits[1] + actions,
                            a.next_values ? a.next_values + (int64_t)row * a.S + first : nullptr, n);
    const lane_distribution<A> next = distribution(z, place, base[2], s.logits[2] + actions + best * N);
    float *p_next = s.d + b * N;
#pragma unroll
    for (int i = 0; i < A; ++i)
        if (lane + 32 * i < N) p_next[lane + 32 * i] = next.p.v[i];
    const lane_distribution<A> now = distribution(z, place, base[0], s.logits[0] + actions + taken * N);
    __syncwarp();
    float edges[2];
    project(p_next, next.p.v, m, edges, N, (ret + discount * z.v_min - z.v_min) * (1.0f / z.delta_z), discount,
            next.mass);
    __syncwarp();  // p_next has been read

    // Sums over atoms: mass, y, cross-entropy, squares of the two parts before their factors, probability.
    const float alpha = z.alpha, keep = 1.0f - z.smoothing, uniform = z.smoothing / (float)N, q = now.expectation;
    float v[8] = {}, highest = -INFINITY;
    bool spike = false;
#pragma unroll
    for (int i = 0; i < A; ++i) {
        const int j = lane + 32 * i;
        const bool inside = j < N;
        const float log_p = inside ? now.shifted.v[i] - now.log_sum : 0.0f, atom = z.atom(j);
        const float p = inside ? exp2_fast(log_p * LOG2_E) : 0.0f;
        const float smooth = inside ? keep * m[i] + uniform : 0.0f;
        ce[i] = p - smooth, mse[i] = p * (atom - q);
        v[0] += m[i], v[1] += m[i] * atom, v[2] -= smooth * log_p, v[3] += ce[i] * ce[i], v[4] += mse[i] * mse[i];
        v[5] += p;
        spike = spike || m[i] > z.spike_mass;
        highest = fmaxf(highest, log_p);
        if (inside) s.m[b * N + j] = m[i];
    }
    const float sums = gather_sums(v), y = gathered(sums, 1);
    spike = __any_sync(ALL_LANES, spike);
    if (__any_sync(ALL_LANES, highest > 1e-6f)) {
        highest = warp_max(highest);
        if (lane == 0) guard_raise(a.guard, GUARD_DDQN, CHECK_LOG_PROBABILITY, (uint32_t)row, highest);
    }
    const float error = q - y, mse_factor = (1.0f - alpha) * 2.0f * error;
#pragma unroll
    for (int i = 0; i < A; ++i) {
        ce[i] *= alpha, mse[i] *= mse_factor;
        if (lane + 32 * i < N) s.d[b * N + lane + 32 * i] = ce[i] + mse[i];
    }
    const float mass = gathered(sums, 0), entropy = gathered(sums, 2), ce2 = gathered(sums, 3),
                mse2 = gathered(sums, 4);
    const float probability = gathered(sums, 5);
    if (lane == 0) {
        const float mean = 1.0f / (float)K;
        const bool terminal = discount == 0.0f;
        float4 *out = reinterpret_cast<float4 *>(s.stats + b * STATS);
        static_assert(STATS == 16 && STAT_Q_MIN == 0 && STAT_LOSS == 2 && STAT_MSE == 4 && STAT_WEIGHT == 8 &&
                          STAT_CE_NORM2 == 12 && STAT_Q_CLIPPED == 14,
                      "the order of the columns below");
        out[0] = make_float4(q, q, alpha * entropy + (1.0f - alpha) * error * error, entropy * mean);
        out[1] = make_float4(error * error * mean, fabsf(error) * mean, q * mean, y * mean);
        out[2] = make_float4(b == 0 ? 1.0f : 0.0f, (edges[0] + edges[1]) * mean, spike && !terminal ? mean : 0.0f,
                             b == 0 && !terminal ? 1.0f : 0.0f);
        out[3] =
            make_float4(alpha * alpha * ce2, mse_factor * mse_factor * mse2, fabsf(q) > z.q_clip ? 1.0f : 0.0f, 0.0f);
        a.next_action[row * K + b] = best;
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, (uint32_t)row, q, z.q_limit);
        guard_mass(a.guard, GUARD_DDQN, (uint32_t)row, mass);
        guard_probabilities(a.guard, GUARD_DDQN, (uint32_t)row, probability, now.log_sum);
        guard_finite(a.guard, GUARD_DDQN, (uint32_t)row, entropy);
        guard_bound(a.guard, GUARD_DDQN, CHECK_Q_RANGE, (uint32_t)row, y, z.q_limit);
    }
}

// The branch's part of the head gradient: A's is d - mean_a d, and only the taken action has a d.
template <int A>
FX_DEVICE void c51_branch_gradient(const c51_loss_args &a, const c51_row &s, int b, c51_branch<A> &branch) {
    const int lane = lane_id(), N = a.N, K = a.K, row = (int)blockIdx.x, n = branch_size(a.branch_sizes, b);
    const float scale = s.weight[2], inverse = 1.0f / (float)n;
    float (&ce)[A] = branch.ce, (&mse)[A] = branch.mse;
    const int64_t at = ((int64_t)row * K + b) * N;
#pragma unroll
    for (int i = 0; i < A; ++i) {
        const int j = lane + 32 * i;
        if (j >= N) break;
        ce[i] *= scale, mse[i] *= scale;
        if (a.target) a.target[at + j] = branch.m[i];
        if (a.ce_grad) a.ce_grad[at + j] = ce[i], a.mse_grad[at + j] = mse[i];
    }
    if (!a.dlogits) return;
    float *out = a.dlogits + (int64_t)row * a.Np + (1 + branch_first(a.branch_sizes, b)) * N;
#pragma unroll 1
    for (int k = 0; k < n; ++k, out += N) {
        const float factor = (k == branch.taken ? 1.0f : 0.0f) - inverse;
#pragma unroll
        for (int i = 0; i < A; ++i)
            if (lane + 32 * i < N) out[lane + 32 * i] = factor * (ce[i] + mse[i]);
    }
}

// The row's own warp, at first: the importance weight (Schaul 2016) and checks of what was drawn.
FX_DEVICE void c51_weight(const c51_loss_args &a, const c51_row &s) {
    const int row = (int)blockIdx.x;
    const float priority = a.priority[row], ret = a.ret[row], discount = a.discount[row];
    // Priority 0: nothing could be drawn, a fault; the row then weighs nothing.
    const float weight =
        priority > 0.0f ? powf(__uint_as_float(a.step->min_priority) / priority, a.step->beta_per) : 0.0f;
    if (lane_id() == 0) {
        const float scaled = weight * a.branch_scale;
        s.weight[0] = weight, s.weight[1] = scaled, s.weight[2] = scaled / (float)a.B;
        if (!(priority > 0.0f)) guard_raise(a.guard, GUARD_DDQN, CHECK_EMPTY, (uint32_t)row, priority);
        guard_finite(a.guard, GUARD_DDQN, (uint32_t)row, ret);
        guard_finite(a.guard, GUARD_DDQN, (uint32_t)row, discount);
        guard_finite(a.guard, GUARD_DDQN, (uint32_t)row, weight);
    }
}

// And at last what the branches make together: V's gradient, the sum over branches and actions, their mean target, the statistics.
FX_DEVICE void c51_whole_row(const c51_loss_args &a, const c51_row &s) {
    const int N = a.N, K = a.K, lane = lane_id(), row = (int)blockIdx.x;
    const float scale = s.weight[2], mean = 1.0f / (float)K;
    float *rows = a.rows + (int64_t)row * a.W, *out = a.dlogits ? a.dlogits + (int64_t)row * a.Np : nullptr;
#pragma unroll 2
    for (int j = lane; j < N; j += 32) {
        float sum = 0.0f, d = 0.0f;
#pragma unroll 1
        for (int b = 0; b < K; ++b) sum += s.m[b * N + j], d += s.d[b * N + j];
        rows[STATS + j] = sum * mean;
        if (out) out[j] = scale * d;
    }
    if (out)
        for (int j = (1 + a.S) * N + lane; j < a.Np; j += 32) out[j] = 0.0f;
    if (lane >= STATS) return;
    float v = s.stats[lane];
#pragma unroll 1
    for (int b = 1; b < K; ++b) v = combine_stats(lane, v, s.stats[b * STATS + lane]);
    v *= lane == STAT_LOSS                                 ? s.weight[1]
         : lane == STAT_WEIGHT                             ? s.weight[0]
         : lane == STAT_CE_NORM2 || lane == STAT_MSE_NORM2 ? scale * scale
                                                           : 1.0f;
    rows[lane] = v;
    if (lane == STAT_TD_ERROR) a.td_error[row] = v;
}

template <int A, bool STAGED>
FX_DEVICE void c51_row_gpu(const c51_loss_args &a, float *shared) {
    const c51_row s(a, shared, STAGED);
    if (STAGED) {
        const float *from = a.logits + (int64_t)blockIdx.x * a.Np;
#pragma unroll
        for (int p = 0; p < 3; ++p, from += (int64_t)a.R * a.Np)
            for (int q = 4 * (int)threadIdx.x; q < a.Np; q += 4 * (int)blockDim.x)
                copy_async(shared + p * a.Np + q, from + q);
    }
    // Every thread passes the same two barriers, whichever its warp's work is.
    const int warp = (int)threadIdx.x >> 5;
    const bool own = warp < a.K;
    c51_branch<A> branch;
    if (own) branch.begin(a, warp);
    else c51_weight(a, s);
    if (STAGED) {
        copy_async_wait();
        __syncthreads();
    }
    if (own) c51_branch_losses(a, s, warp, branch);
    __syncthreads();
    if (own) c51_branch_gradient(a, s, warp, branch);
    else c51_whole_row(a, s);
}

}  // namespace fx
