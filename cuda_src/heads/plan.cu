// Plan: how sure the policy may be that what it holds will pay, and whether it may be believed (docs/step/plan.md).
//
//   l = x w + b, y = 1[net return over the next `length` steps > 0];  loss = log(1 + e^l) - y l on the rows trained on
//   skill = 1 - sum (p - y)^2 / sum (r - y)^2 on the rows held out, r their base rate (Brier skill score, Murphy 1973)
//
// A row is held out by where it lies in time (or by its episode), never by chance: whatever pass or environment brings these bars
// back, the head does not learn from them. A window that reaches from one kind of block into the other is neither.
//
// plan_rows: `length` sectors of 32 bytes and a dot product a row; conviction: a dot product a row, none below the gate.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "abi/plan.h"
#include "lib/philox.h"
#include "replay/ahead.h"

namespace {

static_assert(PLAN_MEANS + 1 == PLAN_COLUMNS, "the gradient follows what is reported");

FX_DEVICE float logistic(float l) {
    const float e = expf(-fabsf(l));
    return (l >= 0.0f ? 1.0f : e) / (1.0f + e);
}

FX_DEVICE bool held_out(uint64_t seed, int64_t key, float share) {
    return fx::uniform01(fx::philox(seed, (uint64_t)key, RNG_PLAN, 0).x) < share;
}

}  // namespace

FX_KERNEL_ANYBLOCK(plan_rows) {
    __shared__ float total[2];  // of the window; 1 where it is valid
    const int row = (int)blockIdx.x, at = a.index[row];
    const replay_state ring = *a.ring;
    const float *x = a.x + (int64_t)row * a.Hp;
    FX_ROWS(one, 1) {
        const fx::ahead found = fx::look_ahead(a.ring_rows, ring, a.capacity, at, a.length);
        FX_LANE_0 total[0] = found.sum, total[1] = found.valid ? 1.0f : 0.0f;
    }
    __syncthreads();
    const float logit = fx::block_sum(a.Hp, [&](int k) { return x[k] * a.w[k * HEAD_WIDTH]; }) + a.bias[0];
    FX_FOR(only, 1) {
        bool trained = false, held = false;
        if (total[1] > 0.0f && total[0] != 0.0f) {  // a window that earned exactly nothing says nothing
            const uint64_t seed = a.step->seed;
            if (a.block_bars > 0) {
                const int end = fx::ring_forward(at, (a.length - 1) * (int)ring.stride, a.capacity);
                const bool first = held_out(seed, a.ring_rows[at].feature_row / a.block_bars, a.holdout);
                const bool last = held_out(seed, a.ring_rows[end].next_feature_row / a.block_bars, a.holdout);
                held = first && last, trained = !first && !last;
            } else {
                held = held_out(seed, a.ring_rows[at].episode, a.holdout), trained = !held;
            }
        }
        const float p = logistic(logit), label = total[0] > 0.0f ? 1.0f : 0.0f, off = p - label;
        float *out = a.rows + (int64_t)row * PLAN_COLUMNS;
        out[PLAN_LOSS] = trained ? (logit > 0.0f ? logit : 0.0f) + log1pf(expf(-fabsf(logit))) - label * logit : 0.0f;
        out[PLAN_PROBABILITY] = p;
        out[PLAN_LABEL] = trained ? label : 0.0f;
        out[PLAN_TRAINED] = trained ? 1.0f : 0.0f;
        out[PLAN_ERROR] = held ? off * off : 0.0f;
        out[PLAN_HELD_LABEL] = held ? label : 0.0f;
        out[PLAN_HELD] = held ? 1.0f : 0.0f;
        out[PLAN_CONVICTION] = a.conviction && at >= 0 ? a.conviction[at] : 1.0f;
        out[PLAN_MEANS] = trained ? off / (float)a.B : 0.0f;
    }
}

FX_KERNEL_ANYBLOCK(plan_update) {
    FX_FOR(only, 1) {
        plan_state s = *a.state;
        const float *m = a.means;
        bool good = true;
        for (int i = 0; i < PLAN_MEANS; ++i) good = good && fabsf(m[i]) <= 3.402823466e38f;
        if (good) {
            s.error += a.rate * (m[PLAN_ERROR] - s.error);
            s.label += a.rate * (m[PLAN_HELD_LABEL] - s.label);
            s.held += a.rate * (m[PLAN_HELD] - s.held);
        }
        const float base = s.label / s.held, reference = base * (1.0f - base);
        s.skill = s.held > 0.0f && reference > 0.0f ? 1.0f - s.error / s.held / reference : 0.0f;
        if (!good || !(s.skill > 0.0f)) s.streak = 0;
        else if (m[PLAN_HELD] > 0.0f && s.streak < a.ready_steps) s.streak += 1;  // a step without evidence is none
        s.readiness = s.streak >= a.ready_steps ? s.skill : 0.0f;
        *a.state = s;
        a.metrics[0] = m[PLAN_TRAINED] > 0.0f ? m[PLAN_LOSS] / m[PLAN_TRAINED] : m[PLAN_LOSS];
        a.metrics[1] = m[PLAN_PROBABILITY];
        a.metrics[2] = m[PLAN_TRAINED] > 0.0f ? m[PLAN_LABEL] / m[PLAN_TRAINED] : 0.0f;
        a.metrics[3] = m[PLAN_HELD];
        a.metrics[4] = s.skill;
        a.metrics[5] = s.readiness;
        a.metrics[6] = m[PLAN_CONVICTION];
    }
}

FX_KERNEL_ANYBLOCK(conviction) {
    const int row = (int)blockIdx.x;
    if (!(a.state->readiness >= a.gate)) {  // not earned (known failure K15): exactly 1, whatever the head says
        FX_FOR(only, 1) a.conviction[row] = 1.0f;
        return;
    }
    const float *x = a.x + (int64_t)row * a.Hp;
    const float p = logistic(fx::block_sum(a.Hp, [&](int k) { return x[k] * a.w[k * HEAD_WIDTH]; }) + a.bias[0]);
    FX_FOR(only, 1) a.conviction[row] = p >= 0.0f ? p : 1.0f;  // a NaN scales nothing
}
