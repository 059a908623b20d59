// What collection adds to the steps taken, and turns over (docs/counterfactual.md): for a step taken another action in the same
// state, drawn from six cycles, and for any row whether it is stored as the step of the mirrored market. Only actions are made
// here; what they earn is `play` (episode.h).
// Include after market/execution.h.
#pragma once
#include "lib/philox.h"
#include "market/execution.h"

namespace fx {

// Long and short swapped: digit d of three becomes 2 - d. Size, order type and urgency stay.
FX_DEVICE int mirror_action(int action) {
    constexpr int REST = ACTION_COUNT / ACTION_DIRECTIONS;
    return (ACTION_DIRECTIONS - 1 - action / REST) * REST + action % REST;
}

// The action of a cycle; the action itself where the cycle changes nothing of it. `other` chooses among two.
FX_DEVICE int cycle_action(int action, int cycle, uint32_t other) {
    constexpr int SIZE = ACTION_ORDERS * ACTION_URGENCIES, REST = ACTION_COUNT / ACTION_DIRECTIONS;
    const int size = action / SIZE % ACTION_SIZES, order = action / ACTION_URGENCIES % ACTION_ORDERS;
    const int urgency = action % ACTION_URGENCIES, step = 1 + (int)(other & 1u);
    switch (cycle) {
        case CYCLE_DIRECTION: return mirror_action(action);
        case CYCLE_SMALLER: return size > 0 ? action - SIZE : action;
        case CYCLE_LARGER: return size + 1 < ACTION_SIZES ? action + SIZE : action;
        case CYCLE_ORDER: return action + ((order + step) % ACTION_ORDERS - order) * ACTION_URGENCIES;
        case CYCLE_URGENCY: return action + (urgency + step) % ACTION_URGENCIES - urgency;
        default: return REST + action % REST;  // CYCLE_FLAT
    }
}

// One of the cycles of the mask that change the action, each as likely; -1: none does.
FX_DEVICE int draw_cycle(int action, uint32_t cycles, uint32_t random) {
    int n = 0;
    for (int c = 0; c < CYCLES; ++c) n += (cycles >> c & 1u) && cycle_action(action, c, 0) != action;
    int left = (int)((uint64_t)random * (uint64_t)n >> 32);
    for (int c = 0; c < CYCLES; ++c)
        if ((cycles >> c & 1u) && cycle_action(action, c, 0) != action && left-- == 0) return c;
    return -1;
}

// The counterfactual rows stand behind those of E environments, C of them, each fed by a run of environments, of which one is
// drawn each step: the row that environment e fills, or -1.
FX_DEVICE int counterfactual_row(uint64_t seed, uint64_t draw, int e, int E, int C) {
    if (C == 0) return -1;
    const int64_t slot = (int64_t)e * C / E;
    const int first = (int)((slot * E + C - 1) / C), stop = (int)(((slot + 1) * E + C - 1) / C);
    const uint4 random = philox(seed, draw, RNG_MARKET, (uint32_t)(E + slot));
    return first + (int)((uint64_t)random.x * (uint64_t)(stop - first) >> 32) == e ? E + (int)slot : -1;
}

}  // namespace fx
