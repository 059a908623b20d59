// One decision in one episode: what becomes of the account in the next bar, and what that earns. The only place where a
// reward is made, for steps that were taken and for those that were not (counterfactual.h) alike: recomputed from the bars,
// never negated or edited (known failure K14). Pure: the state that it starts from is not changed.
// Include after market/execution.h.
#pragma once
#include "market/execution.h"

namespace fx {

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

// The goal slot behind the portfolio features: the episode's return so far, and the one that it is to reach.
FX_DEVICE bool has_goal(int portfolio_width) {
    return portfolio_width > PORTFOLIO_FEATURES;
}

FX_DEVICE void goal_slot(const market_block &m, double equity, float *out) {
    out[0] = (float)(equity / m.pnl_scale);
    out[1] = (float)m.goal;
}

FX_DEVICE double above_goal(const market_block &m, double equity) {
    const double goal = m.goal * m.pnl_scale;
    return equity > goal ? equity - goal : 0.0;
}

struct outcome {
    account acc;
    double equity, peak;  // money
    double net, reward;   // money
    fill order, exit;
    float portfolio[PORTFOLIO_FEATURES];  // features of s'
};

// `action`, decided at the close `last` in state s, in the bar that follows. `leave`: what is held goes at that bar's close.
// An action outside the action space places no order. Conviction scales the size, and no reward: what was traded is what counts.
// `goal`: what takes the episode's return above its goal earns nothing.
FX_DEVICE outcome play(const market_block &m, const env_state &s, const ohlc &bar, double last, int action, bool leave,
                    float conviction, bool goal) {
    outcome o;
    o.acc = {s.cash, s.entry, s.position, s.traded, s.bars_in_trade};
    o.order = o.exit = {0, 0.0, 0.0};
    if (action_valid(action)) {
        const action_parts p = decode_action(action);
        const int target = p.direction * size_contracts(p.quarters, m.position_limit, conviction);
        o.order = execute_order(m, bar, last, target - o.acc.position, p.order, p.urgency);
    }
    o.acc.apply(o.order);
    if (leave) o.exit = execute_exit(m, bar, o.acc.position);
    o.acc.apply(o.exit);
    if (o.acc.position != 0) o.acc.bars_in_trade += 1;

    o.equity = o.acc.equity(m, bar.close);
    o.net = o.equity - s.equity;
    o.peak = o.equity > s.peak ? o.equity : s.peak;
    const double drawdown = o.peak - o.equity, deeper = drawdown - (s.peak - s.equity);
    o.reward = o.net - m.drawdown_penalty * (deeper > 0.0 ? deeper : 0.0);
    if (goal) o.reward -= above_goal(m, o.equity) - above_goal(m, s.equity);
    portfolio(m, o.acc, bar.close, drawdown, o.portfolio);
    return o;
}

}  // namespace fx
