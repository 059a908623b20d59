// One order against one bar: the only place where a fill price is made. Pure, so that whatever asks "what would this
// action have earned here" (the environment, counterfactual rows) gets the same answer by the same code: a reward is
// recomputed from the bars, never negated or edited (known failure K14).
//
// A sell is computed as a buy in the mirrored market (all prices negated), so a mirrored action in a mirrored market
// fills at the mirrored price, bit for bit.
// Include after abi/types.h and abi/market.h, which carry no guards.
#pragma once
#include "lib/kernel.h"

namespace fx {

enum order_type { ORDER_MARKET = 0, ORDER_LIMIT = 1, ORDER_STOP = 2 };

struct action_parts {
    int direction;  // -1, 0, 1
    int quarters;   // 1 to 4 quarters of the position limit
    int order;      // order_type
    int urgency;    // 0 passive, 1 normal, 2 aggressive
};

struct ohlc {  // ticks
    double open, high, low, close;
};

struct fill {
    int contracts;    // signed; 0: no fill
    double price;     // ticks
    double friction;  // ticks a contract of half-spread and slippage that price holds
};

FX_DEVICE bool action_valid(int action) { return action >= 0 && action < ACTION_COUNT; }

FX_DEVICE action_parts decode_action(int action) {
    action_parts p;
    p.urgency = action % ACTION_URGENCIES;
    action /= ACTION_URGENCIES;
    p.order = action % ACTION_ORDERS;
    action /= ACTION_ORDERS;
    p.quarters = action % ACTION_SIZES + 1;
    p.direction = action / ACTION_SIZES - 1;
    return p;
}

// Contracts of a size: quarters of the limit rounded half up, at least one. With conviction below 1 (docs/step/plan.md) that
// share of it, rounded half up: none at all, where so little is left.
FX_DEVICE int size_contracts(int quarters, int limit, float conviction) {
    int n = (int)(((int64_t)limit * quarters + 2) / 4);
    n = n < 1 ? 1 : n;
    return conviction < 1.0f ? (int)((double)n * (double)conviction + 0.5) : n;
}

FX_DEVICE ohlc load_bar(const float *bars, int i) {
    const float *b = bars + (int64_t)i * 4;
    return {b[0], b[1], b[2], b[3]};
}

// Ticks a contract: urgency factor * (constant + share of the bar's range).
FX_DEVICE double slippage(const market_block &m, int urgency, const ohlc &bar) {
    double factor = urgency == 0 ? m.urgency_passive : (urgency == 1 ? m.urgency_normal : m.urgency_aggressive);
    return factor * (m.slippage + m.slippage_range * (bar.high - bar.low));
}

// `quantity` signed contracts, decided at the close `last`, sent to `bar`, valid for that bar only.
//   market  the open, plus half-spread and slippage
//   stop    triggered when the bar trades at or beyond last + offset; then a market order at the trigger, or at the
//           open where the bar opens beyond it
//   limit   rests at the touch, last - half_spread; filled only when the bar trades THROUGH it (a low equal to the
//           limit leaves us in the queue); at the limit, or at the open's ask where that is better; no slippage
FX_DEVICE fill execute_order(const market_block &m, const ohlc &bar, double last, int quantity, int order, int urgency) {
    if (quantity == 0) return {0, 0.0, 0.0};
    double side = quantity > 0 ? 1.0 : -1.0;
    double open = side * bar.open, close = side * last;  // as a buyer sees them
    double high = quantity > 0 ? bar.high : -bar.low, low = quantity > 0 ? bar.low : -bar.high;
    double friction = m.half_spread + slippage(m, urgency, bar);
    if (order == ORDER_LIMIT) {
        double limit = close - m.half_spread, ask = open + m.half_spread;
        if (!(low < limit)) return {0, 0.0, 0.0};
        bool at_open = ask < limit;  // marketable on arrival: it takes the ask
        return {quantity, side * (at_open ? ask : limit), at_open ? m.half_spread : 0.0};
    }
    double reference = open;
    if (order == ORDER_STOP) {
        double trigger = close + m.stop_offset;
        if (!(high >= trigger)) return {0, 0.0, 0.0};
        reference = open > trigger ? open : trigger;
    }
    return {quantity, side * (reference + friction), friction};
}

// Leaves the position at the close, as a market order of aggressive urgency.
FX_DEVICE fill execute_exit(const market_block &m, const ohlc &bar, int position) {
    if (position == 0) return {0, 0.0, 0.0};
    double side = position > 0 ? -1.0 : 1.0, friction = m.half_spread + slippage(m, 2, bar);
    return {-position, bar.close + side * friction, friction};
}

// Money: fees, half-spread and slippage of a fill.
FX_DEVICE double cost(const market_block &m, const fill &f) {
    double contracts = f.contracts < 0 ? -(double)f.contracts : (double)f.contracts;
    return contracts * (m.tick_value * f.friction + m.fee);
}

// The account of one episode. Equity is a function of what stands here, so nothing drifts however long it runs.
struct account {
    double cash;   // ticks * contracts
    double entry;  // ticks
    int position;  // contracts, signed
    int traded;    // contracts
    int bars_in_trade;  // closes

    FX_DEVICE void apply(const fill &f) {
        if (f.contracts == 0) return;
        int before = position, after = before + f.contracts, size = f.contracts < 0 ? -f.contracts : f.contracts;
        bool adds = before == 0 || (before > 0) == (f.contracts > 0), flips = !adds && (before > 0) != (after > 0);
        int held = before < 0 ? -before : before;
        cash -= (double)f.contracts * f.price;
        traded += size;
        position = after;
        if (after == 0) {
            entry = 0.0;
            bars_in_trade = 0;
        } else if (flips || before == 0) {
            entry = f.price;
            bars_in_trade = 0;
        } else if (adds) {
            entry = (entry * held + f.price * size) / (double)(held + size);
        }
    }
    FX_DEVICE double equity(const market_block &m, double close) const {
        return m.tick_value * (cash + (double)position * close) - m.fee * (double)traded;
    }
    FX_DEVICE double unrealized(const market_block &m, double close) const {
        return m.tick_value * (double)position * (close - entry);
    }
};

}  // namespace fx
