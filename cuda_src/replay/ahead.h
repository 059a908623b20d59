// What lies ahead of a row of the ring, in its episode: the net return over the next `length` steps of its environment. Made
// from the raw rewards when it is wanted, so that nothing about it is stored or goes stale (docs/step/multi_horizon.md).
#pragma once
#include "lib/rows.h"
#include "replay/sum_tree.h"

namespace fx {

struct ahead {
    float sum;   // of the raw rewards; 0 where it is not valid
    bool valid;  // the window neither crosses the episode's end, an absent step nor the write head
};

// One warp; the sum's order depends on the length alone. A window that ends with its episode is whole.
FX_DEVICE ahead look_ahead(const replay_row *rows, const replay_state &ring, int capacity, int row, int length) {
    const int held = ring_back((int)ring.position, row, capacity);  // rows from this one to the write head, 0: all
    const int64_t last = (int64_t)(length - 1) * (int64_t)ring.stride;
    if (row < 0 || last >= (held ? held : capacity)) return {0.0f, false};
    const int stride = (int)ring.stride;
    auto at = [&](int j) -> const replay_row & { return rows[ring_forward(row, j * stride, capacity)]; };
    const int broken = lane_reduce(length, 0, op_sum(), [&](int j) {
        const int ended = at(j).ended;
        return (ended & (ENDED_ABSENT | ENDED_COUNTERFACTUAL)) || (ended && j + 1 < length) ? 1 : 0;
    });
    if (broken) return {0.0f, false};
    return {lane_sum(length, [&](int j) { return at(j).reward; }), true};
}

}  // namespace fx
