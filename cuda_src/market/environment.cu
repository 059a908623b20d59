// The trading environment: E episodes walk one bar table and one feature table in device memory. One kernel a step,
// which also writes the next observation, so that a step of collection costs one dependent launch beside the policy.
//
// One block an environment. All threads derive the walk (which bar comes next depends on no action) and copy the
// feature row; one of them trades. Semantics: docs/environment.md; the price of a fill: execution.h.
// Launch: grid (E), block (32).
#include "lib/kernel.h"
#include "abi/types.h"
#include "abi/market.h"
#include "market/execution.h"

namespace fx {

// The first bar at or after `cursor` that has a successor in its session and before `end`; end - 1 or later if none.
FX_DEVICE int first_decision(const int32_t *session_end, int cursor, int end) {
    while (cursor + 1 < end && session_end[cursor] == cursor) ++cursor;
    return cursor;
}

FX_DEVICE float clamp5(float x) { return x < -5.0f ? -5.0f : (x > 5.0f ? 5.0f : x); }

// Position as a share of the limit, unrealized PnL, time in trade, drawdown of the episode: scaled, see the docs.
// Divisions in f32: these are features, and a double division takes a GPU thread a hundred cycles.
FX_DEVICE void portfolio(const market_block &m, const account &acc, double close, double drawdown, float *out) {
    const float bars = (float)acc.bars_in_trade, scale = (float)m.pnl_scale;
    out[0] = (float)acc.position / (float)m.position_limit;
    out[1] = clamp5((float)acc.unrealized(m, close) / scale);
    out[2] = bars / (bars + (float)m.time_scale);
    out[3] = clamp5((float)drawdown / scale);
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
    FX_FOR(j, a.Sp - a.F - PORTFOLIO_FEATURES) rest[PORTFOLIO_FEATURES + j] = 0.0f;
    FX_FOR(j, PORTFOLIO_FEATURES) rest[j] = s.portfolio[j];
}

FX_KERNEL_ANYBLOCK(env_step) {
    int e = (int)blockIdx.x;
    env_state *env = a.env + e;
    const int bar = env->cursor, now = bar + 1, end = env->end;
    const int session_last = env->session_last, flatten = env->flatten;
    float *state = a.state ? a.state + (int64_t)e * a.Sp : nullptr;
    __syncthreads();  // everyone has read env before one thread writes it

    if (now >= end) {  // idle
        if (state)
            FX_FOR(j, a.Sp) state[j] = 0.0f;
        if (a.row_ended) {
            FX_FOR(one, 1) {
                a.row_feature[e] = a.row_next_feature[e] = a.row_action[e] = 0;
                a.row_ended[e] = ENDED_ABSENT;
                a.row_reward[e] = 0.0f;
            }
            FX_FOR(j, PORTFOLIO_FEATURES)
                a.row_portfolio[e * PORTFOLIO_FEATURES + j] = a.row_next_portfolio[e * PORTFOLIO_FEATURES + j] = 0.0f;
        }
        return;
    }

    // Everything that depends on the cursor alone is asked for before anything waits.
    const fx::ohlc b = fx::load_bar(a.bars, now);
    const double last = fx::load_bar(a.bars, bar).close;
    const int action = a.action[e];

    // The walk. A session's end is a terminal state; the end of the data is one only where the position is closed.
    const bool session_over = session_last == now, data_over = now + 1 >= end;
    const bool terminated = session_over || (data_over && flatten), truncated = data_over && !terminated;
    const int next = session_over ? fx::first_decision(a.session_end, now + 1, end) : now;
    const bool goes_on = next + 1 < end;

    if (state) {
        if (goes_on) {
            const float *row = a.features + (int64_t)next * a.stride;
            FX_FOR(j, a.F) state[j] = row[j];
        } else {
            FX_FOR(j, a.F) state[j] = 0.0f;
        }
        float *pad = state + a.F + PORTFOLIO_FEATURES;
        FX_FOR(j, a.Sp - a.F - PORTFOLIO_FEATURES) pad[j] = 0.0f;
    }

    FX_FOR(one, 1) {
        const market_block &m = *a.market;
        const env_state s = *env;
        fx::account acc = {s.cash, s.entry, s.position, s.traded, s.bars_in_trade};

        fx::fill order = {0, 0.0, 0.0};
        const bool valid = fx::action_valid(action);
        if (valid) {
            const fx::action_parts p = fx::decode_action(action);
            const int target = p.direction * fx::size_contracts(p.quarters, m.position_limit);
            order = fx::execute_order(m, b, last, target - acc.position, p.order, p.urgency);
        }
        acc.apply(order);
        fx::fill exit = {0, 0.0, 0.0};
        if (terminated) exit = fx::execute_exit(m, b, acc.position);
        acc.apply(exit);
        if (acc.position != 0) acc.bars_in_trade += 1;

        const double equity = acc.equity(m, b.close), net = equity - s.equity;
        const double peak = equity > s.peak ? equity : s.peak;
        const double drawdown = peak - equity, deeper = drawdown - (s.peak - s.equity);
        const double reward = net - m.drawdown_penalty * (deeper > 0.0 ? deeper : 0.0);

        float after[PORTFOLIO_FEATURES];
        fx::portfolio(m, acc, b.close, drawdown, after);

        if (a.row_ended) {
            a.row_feature[e] = bar;
            a.row_next_feature[e] = now;
            for (int j = 0; j < PORTFOLIO_FEATURES; ++j) {
                a.row_portfolio[e * PORTFOLIO_FEATURES + j] = s.portfolio[j];
                a.row_next_portfolio[e * PORTFOLIO_FEATURES + j] = after[j];
            }
            a.row_action[e] = valid ? action : 0;
            a.row_reward[e] = (float)reward;
            // A row whose action no network has an output for must never be drawn.
            a.row_ended[e] =
                !valid ? ENDED_ABSENT : (terminated ? ENDED_TERMINATED : (truncated ? ENDED_TRUNCATED : 0));
        }
        const int slot = now - a.result_first;
        if (a.result && slot >= 0 && slot < a.results) {
            bar_result r = {};
            r.net = net;
            r.cost = fx::cost(m, order) + fx::cost(m, exit);
            r.price = order.price;
            r.exit_price = exit.price;
            r.contracts = order.contracts;
            r.exit_contracts = exit.contracts;
            r.position = acc.position;
            r.action = action;
            r.visited = 1;
            a.result[slot] = r;
        }

        env_state t = {};  // a new episode, unless this one goes on
        if (!session_over) {
            t.cash = acc.cash;
            t.entry = acc.entry;
            t.equity = equity;
            t.peak = peak;
            t.position = acc.position;
            t.traded = acc.traded;
            t.bars_in_trade = acc.bars_in_trade;
            for (int j = 0; j < PORTFOLIO_FEATURES; ++j) t.portfolio[j] = after[j];
        }
        t.cursor = next;
        t.end = end;
        t.session_last = session_over && goes_on ? a.session_end[next] : session_last;
        t.flatten = flatten;
        t.invalid_actions = s.invalid_actions + (valid ? 0 : 1);
        *env = t;

        if (state)
            for (int j = 0; j < PORTFOLIO_FEATURES; ++j) state[a.F + j] = goes_on ? t.portfolio[j] : 0.0f;
    }
}
