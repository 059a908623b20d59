// The trading environment: E episodes walk one bar table and one feature table in device memory. One kernel a step,
// which also writes the next observation, so that a step of collection costs one dependent launch beside the policy.
//
// One block an environment. All threads derive the walk (which bar comes next depends on no action) and copy the
// feature row; one of them trades, and a second one beside it plays a counterfactual action from the same account, where
// collection asks for it. Semantics: docs/environment.md, docs/counterfactual.md; the price of a fill: execution.h; what a
// step earns: episode.h.
// Launch: grid (E), block (32).
#include "lib/kernel.h"
#include "abi/types.h"
#include "abi/market.h"
#include "market/counterfactual.h"
#include "market/episode.h"

namespace fx {

// The first bar at or after `cursor` that has a successor in its session and before `end`; end - 1 or later if none.
FX_DEVICE int first_decision(const int32_t *session_end, int cursor, int end) {
    while (cursor + 1 < end && session_end[cursor] == cursor) ++cursor;
    return cursor;
}

// The rows of one step for the replay buffer: all columns of one of them.
FX_DEVICE void write_row(const env_step_args &a, int row, const env_state &s, int now, int action, const outcome &o,
                      int ended, bool mirrored, float conviction) {
    a.row_feature[row] = s.cursor;
    a.row_next_feature[row] = now;
    float *own = a.row_portfolio + (int64_t)row * a.P, *next_own = a.row_next_portfolio + (int64_t)row * a.P;
    for (int j = 0; j < PORTFOLIO_FEATURES; ++j) own[j] = s.portfolio[j], next_own[j] = o.portfolio[j];
    if (has_goal(a.P)) {
        goal_slot(*a.market, s.equity, own + PORTFOLIO_FEATURES);
        goal_slot(*a.market, o.equity, next_own + PORTFOLIO_FEATURES);
    }
    a.row_action[row] = mirrored ? mirror_action(action) : action;
    a.row_reward[row] = (float)o.reward;
    a.row_ended[row] = ended;
    if (a.row_mirrored) a.row_mirrored[row] = mirrored ? 1 : 0;
    if (a.row_conviction) a.row_conviction[row] = conviction;
}

// A row that is never drawn.
FX_DEVICE void write_absent(const env_step_args &a, int row) {
    a.row_feature[row] = a.row_next_feature[row] = a.row_action[row] = 0;
    a.row_ended[row] = ENDED_ABSENT;
    a.row_reward[row] = 0.0f;
    for (int j = 0; j < a.P; ++j)
        a.row_portfolio[(int64_t)row * a.P + j] = a.row_next_portfolio[(int64_t)row * a.P + j] = 0.0f;
    if (a.row_mirrored) a.row_mirrored[row] = 0;
    if (a.row_conviction) a.row_conviction[row] = 1.0f;
}

}  // namespace fx

// One thread an environment.
FX_KERNEL(env_reset) {
    int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (e >= a.E) return;
    env_state s = {};
    s.end = a.end[e];
    s.flatten = a.flatten[e];
    s.cursor = fx::first_decision(a.session_end, a.start[e], s.end);
    if (s.cursor + 1 < s.end) s.session_last = a.session_end[s.cursor];
    a.env[e] = s;
}

// The observation of an idle environment is zeros.
FX_KERNEL_ANYBLOCK(env_observe) {
    int e = (int)blockIdx.x;
    const env_state &s = a.env[e];
    float *state = a.state + (int64_t)e * a.Sp;
    if (s.cursor + 1 >= s.end) {
        FX_FOR(j, a.Sp) state[j] = 0.0f;
        return;
    }
    const float *row = a.features + (int64_t)s.cursor * a.stride;
    FX_FOR(j, a.F) state[j] = row[j];
    float *rest = state + a.F;
    FX_FOR(j, a.Sp - a.F - a.P) rest[a.P + j] = 0.0f;
    FX_FOR(j, PORTFOLIO_FEATURES) rest[j] = s.portfolio[j];
    FX_FOR(one, 1)
        if (fx::has_goal(a.P)) fx::goal_slot(*a.market, s.equity, rest + PORTFOLIO_FEATURES);
}

FX_KERNEL_ANYBLOCK(env_step) {
    __shared__ double reward[2];
    const int e = (int)blockIdx.x;
    const env_state s = a.env[e];
    const int bar = s.cursor, now = bar + 1, end = s.end;
    float *state = a.state ? a.state + (int64_t)e * a.Sp : nullptr;
    const uint64_t seed = a.control ? a.control->seed : 0, draw = a.draws ? a.draws[e] : 0;
    const int extra = fx::counterfactual_row(seed, draw, e, a.E, a.C);
    __syncthreads();  // everyone has read env and draws before one thread writes them

    if (now >= end) {  // idle
        if (state)
            FX_FOR(j, a.Sp) state[j] = 0.0f;
        FX_FOR(one, 1) {
            if (a.row_ended) fx::write_absent(a, e);
            if (extra >= 0) fx::write_absent(a, extra);
            if (a.draws) a.draws[e] = draw + 1;
        }
        return;
    }

    // Everything that depends on the cursor alone is asked for before anything waits.
    const fx::ohlc b = fx::load_bar(a.bars, now);
    const double last = fx::load_bar(a.bars, bar).close;
    const int action = a.action[e];
    const float conviction = a.conviction ? a.conviction[e] : 1.0f;
    const market_block &m = *a.market;

    // The walk. A session's end is a terminal state; the end of the data is one only where the position is closed.
    const bool session_over = s.session_last == now, data_over = now + 1 >= end;
    const bool terminated = session_over || (data_over && s.flatten), truncated = data_over && !terminated;
    const int next = session_over ? fx::first_decision(a.session_end, now + 1, end) : now;
    const bool goes_on = next + 1 < end;

    if (state) {
        if (goes_on) {
            const float *row = a.features + (int64_t)next * a.stride;
            FX_FOR(j, a.F) state[j] = row[j];
        } else {
            FX_FOR(j, a.F) state[j] = 0.0f;
        }
        float *pad = state + a.F + a.P;
        FX_FOR(j, a.Sp - a.F - a.P) pad[j] = 0.0f;
    }

    // What is added and mirrored: drawn from one place of the random sequence an environment and step.
    const bool valid = fx::action_valid(action);
    const uint4 random = a.control ? fx::philox(seed, draw, RNG_MARKET, (uint32_t)e) : make_uint4(0, 0, 0, 0);
    const int cycle = extra >= 0 && valid ? fx::draw_cycle(action, a.cycles, random.x) : -1;
    const bool mirrored[2] = {valid && fx::uniform01(random.z) < a.mirror_share,
                              cycle >= 0 && fx::uniform01(random.w) < a.mirror_share};

    // Thread 0 plays the step that was taken, thread 1 the one that was not: side by side in one warp.
    FX_FOR(which, extra >= 0 ? 2 : 1) {
        const bool taken = which == 0;
        if (!taken && cycle < 0) {
            fx::write_absent(a, extra);
            continue;
        }
        const int choice = taken ? action : fx::cycle_action(action, cycle, random.y);
        const fx::outcome o = fx::play(m, s, b, last, choice, terminated, conviction, fx::has_goal(a.P));
        reward[which] = o.reward;
        const int end_of = terminated ? ENDED_TERMINATED : (truncated ? ENDED_TRUNCATED : 0);
        if (!taken) {  // its window is itself: it bootstraps from its own s'
            const int ended = ENDED_COUNTERFACTUAL | (terminated ? ENDED_TERMINATED : ENDED_TRUNCATED) |
                              (extra - e) << ENDED_BACK_SHIFT;
            fx::write_row(a, extra, s, now, choice, o, ended, mirrored[1], conviction);
            continue;
        }
        // A row whose action no network has an output for must never be drawn.
        if (a.row_ended)
            fx::write_row(a, e, s, now, valid ? action : 0, o, valid ? end_of : ENDED_ABSENT, mirrored[0], conviction);
        const int slot = now - a.result_first;
        if (a.result && slot >= 0 && slot < a.results) {
            bar_result r = {};
            r.net = o.net;
            r.cost = fx::cost(m, o.order) + fx::cost(m, o.exit);
            r.price = o.order.price;
            r.exit_price = o.exit.price;
            r.contracts = o.order.contracts;
            r.exit_contracts = o.exit.contracts;
            r.position = o.acc.position;
            r.action = action;
            r.visited = 1;
            a.result[slot] = r;
        }

        env_state t = {};  // a new episode, unless this one goes on
        if (!session_over) {
            t.cash = o.acc.cash;
            t.entry = o.acc.entry;
            t.equity = o.equity;
            t.peak = o.peak;
            t.position = o.acc.position;
            t.traded = o.acc.traded;
            t.bars_in_trade = o.acc.bars_in_trade;
            for (int j = 0; j < PORTFOLIO_FEATURES; ++j) t.portfolio[j] = o.portfolio[j];
        }
        t.cursor = next;
        t.end = end;
        t.session_last = session_over && goes_on ? a.session_end[next] : s.session_last;
        t.flatten = s.flatten;
        t.invalid_actions = s.invalid_actions + (valid ? 0 : 1);
        a.env[e] = t;
        if (a.draws) a.draws[e] = draw + 1;

        if (state) {
            float *own = state + a.F;
            for (int j = 0; j < a.P; ++j) own[j] = j < PORTFOLIO_FEATURES && goes_on ? t.portfolio[j] : 0.0f;
            if (fx::has_goal(a.P) && goes_on) fx::goal_slot(m, t.equity, own + PORTFOLIO_FEATURES);
        }
    }

    if (!a.counts) return;
    __syncthreads();
    FX_FOR(one, 1) {
        augment_counts *counts = a.counts + e;
        counts->rows += valid ? 1u : 0u;
        counts->mirrored += (mirrored[0] ? 1u : 0u) + (mirrored[1] ? 1u : 0u);
        if (cycle >= 0) {
            counts->counterfactual[cycle] += 1u;
            counts->difference[cycle] += reward[1] - reward[0];
        }
    }
}
