// Insertion into the ring: E transitions, one per environment, in environment order. Three launches, so that several inserts
// fit into one graph: rows and priorities, sums, then size and position, which nothing reads as new before.
//
// Row number g (counted from the last clear) stands at g % capacity; the same environment's next one is g + E. A row enters
// with priority 0 and gets P_max once its n-step window is complete, `lag` inserts later, or ended, whichever is first. So
// what is drawn never reaches across the write head; and what is overwritten loses its priority with its contents.
//
// Vector mode stores each observation once: s' of a row is the s of its successor, and only the last observation of an
// episode is stored beside, in a ring of `finals` slots. When that ring comes round, the row a slot belonged to, if it is
// still held, and the rows of its episode whose windows reach it, lose their priority: nothing that is drawn ever names an
// overwritten slot. With finals >= (n_step + 1) E such a row is older than any that this insert makes drawable.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/replay.h"
#include "lib/reduce.h"
#include "replay/sum_tree.h"

namespace fx {

// The oldest row number still held after an insert of E rows.
FX_DEVICE int64_t oldest_held(const replay_state &ring, int E, int capacity) {
    int64_t oldest = (int64_t)ring.inserted + E - capacity;
    return oldest > 0 ? oldest : 0;
}

FX_DEVICE bool has_final(int ended) { return !(ended & ENDED_ABSENT) && (ended & (ENDED_TERMINATED | ENDED_TRUNCATED)); }

}  // namespace fx

// Launch: grid (E,), block (32,).
FX_KERNEL_ANYBLOCK(replay_insert) {
    const int e = (int)blockIdx.x;
    const replay_state ring = *a.ring;
    const int64_t number = (int64_t)ring.inserted + e, oldest = fx::oldest_held(ring, a.E, a.capacity);
    const int row = fx::ring_forward((int)ring.position, e, a.capacity);
    const int ended = a.ended[e];
    const bool present = !(ended & ENDED_ABSENT);
    int slot = 0;
    int64_t evicted = -1;

    // The context is in no staged row: the last C columns come from it.
    auto value = [&](const float *staged, int width, int j) {
        return j < width - a.C ? staged[e * (int64_t)(width - a.C) + j] : a.context[j - (width - a.C)];
    };
    if (a.state) {
        const int64_t S = a.S;
        FX_FOR(j, a.S) a.stored_state[row * S + j] = value(a.state, a.S, j);
        if (fx::has_final(ended)) {
            const int before =
                fx::block_reduce(e, 0, fx::op_sum(), [&](int i) { return fx::has_final(a.ended[i]) ? 1 : 0; });
            const int64_t final_number = (int64_t)ring.finals + before;
            slot = (int)(final_number % a.finals);
            if (final_number >= a.finals && a.final_owner[slot] >= oldest) evicted = a.final_owner[slot];
            FX_FOR(j, a.S) a.final_state[slot * S + j] = value(a.next_state, a.S, j);
        }
    } else {
        const int64_t P = a.P;
        FX_FOR(j, a.P) {
            a.stored_portfolio[row * 2 * P + j] = value(a.portfolio, a.P, j);
            a.stored_portfolio[(row * 2 + 1) * P + j] = value(a.next_portfolio, a.P, j);
        }
        // s' of the row before is this s, so it has this context; where the episode ended it keeps its own.
        const int before = fx::ring_back(row, a.E, a.capacity);
        if (present && ring.inserted && !a.rows[before].ended)
            FX_FOR(j, a.C) a.stored_portfolio[(before * 2 + 2) * P - a.C + j] = a.context[j];
    }
    __syncthreads();  // everyone has read final_owner before one thread writes it

    FX_FOR(one, 1) {
        const replay_row *before = ring.inserted ? a.rows + fx::ring_back(row, a.E, a.capacity) : nullptr;
        replay_row r = {};
        r.action = a.action[e];
        r.reward = a.reward[e];
        r.ended = ended;
        r.stride = a.E;
        r.episode = before ? before->episode + (before->ended ? (uint32_t)a.E : 0u) : (uint32_t)e;
        r.feature_row = a.feature_row ? a.feature_row[e] : 0;
        r.next_feature_row = a.next_feature_row ? a.next_feature_row[e] : 0;
        r.final_slot = slot;
        a.rows[row] = r;
        if (a.mirrored) a.stored_mirrored[row] = (uint8_t)a.mirrored[e];
        if (a.conviction) a.stored_conviction[row] = a.conviction[e];
        a.priority[row] = 0.0f;

        // Back along this environment: the rows whose windows this one completes or ends.
        for (int j = 0; present && j <= a.lag && number >= (int64_t)j * a.E; ++j) {
            const int at = fx::ring_back(row, j * a.E, a.capacity);
            if (j > 0 && a.rows[at].ended) break;  // an earlier episode: its rows are drawable since its end
            if (ended || j == a.lag) a.priority[at] = ring.max_priority;
        }

        if (a.evicted) a.evicted[e] = evicted;
        if (evicted >= 0) {
            for (int j = 0; j < a.n_step && evicted - (int64_t)j * a.E >= oldest; ++j) {
                const int at = (int)((evicted - (int64_t)j * a.E) % a.capacity);
                if (j > 0 && a.rows[at].ended) break;
                a.priority[at] = 0.0f;
            }
        }
        if (a.state && fx::has_final(ended)) a.final_owner[slot] = number;
    }
}

// The first `recent` blocks recompute the sums over the rows of the last lag + 1 inserts; then, one an environment, those
// that lost rows by eviction. Two may recompute the same sum: both write the same bits.
FX_KERNEL_ANYBLOCK(replay_insert_sums) {
    const replay_state ring = *a.ring;
    const int b = (int)blockIdx.x;
    if (b < a.recent) {
        const int64_t back = (int64_t)a.lag * a.E, inserted = (int64_t)ring.inserted;
        const int first = fx::ring_back((int)ring.position, (int)(back < inserted ? back : inserted), a.capacity);
        const int block = (first / SUM_FANOUT + b) % a.blocks;
        const double sum = fx::sum_of_256(a.priority + (int64_t)block * SUM_FANOUT);
        FX_FOR(one, 1) a.block_sum[block] = sum;
        return;
    }
    const int64_t evicted = a.evicted[b - a.recent], oldest = fx::oldest_held(ring, a.E, a.capacity);
    int done = -1;
    for (int j = 0; evicted >= 0 && j < a.n_step && evicted - (int64_t)j * a.E >= oldest; ++j) {
        const int block = (int)((evicted - (int64_t)j * a.E) % a.capacity) / SUM_FANOUT;
        if (block == done) continue;
        done = block;
        const double sum = fx::sum_of_256(a.priority + (int64_t)block * SUM_FANOUT);
        FX_FOR(one, 1) a.block_sum[block] = sum;
    }
}

// All upper sums (there are at most 256), then the counts.
FX_KERNEL_ANYBLOCK(replay_advance) {
    const int b = (int)blockIdx.x;
    if (a.super_sum) {
        const double sum = fx::sum_of_256(a.block_sum + b * SUM_FANOUT);
        FX_FOR(one, 1) a.super_sum[b] = sum;
    }
    if (b > 0) return;
    int finals = 0;
    if (a.ended) {
        finals = fx::block_reduce(a.E, 0, fx::op_sum(), [&](int i) { return fx::has_final(a.ended[i]) ? 1 : 0; });
    }
    FX_FOR(one, 1) {
        replay_state ring = *a.ring;
        ring.inserted += (uint64_t)a.E;
        ring.stride = (uint32_t)a.E;
        ring.finals += (uint64_t)finals;
        ring.position = (uint32_t)fx::ring_forward((int)ring.position, a.E, a.capacity);
        const uint32_t size = ring.size + (uint32_t)a.E;
        ring.size = size < (uint32_t)a.capacity ? size : (uint32_t)a.capacity;
        *a.ring = ring;
    }
}

// Launch: grid (blocks,), block (32,). The rows stay: without priority nobody sees them.
FX_KERNEL_ANYBLOCK(replay_clear) {
    const int b = (int)blockIdx.x;
    float *leaves = a.priority + (int64_t)b * SUM_FANOUT;
    FX_FOR(j, SUM_FANOUT) leaves[j] = 0.0f;
    FX_FOR(j, min(SUM_FANOUT, a.slots - b * SUM_FANOUT)) a.running[b * SUM_FANOUT + j] = 0.0;
    FX_FOR(one, 1) {
        a.block_sum[b] = 0.0;
        if (a.super_sum && b % SUM_FANOUT == 0) a.super_sum[b / SUM_FANOUT] = 0.0;
        if (b == 0) {
            if (a.returns) *a.returns = return_stats{};
            replay_state ring = {};
            ring.max_priority = 1.0f;
            *a.ring = ring;
        }
    }
}
