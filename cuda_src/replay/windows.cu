// Windows of past states, for networks that look back: of the rows drawn (replay_windows), of environments that are acted for
// (window_push). Position L-1 is the present state, L-1-j the one j steps earlier; what precedes the episode, or what the ring
// no longer holds, is zero, and `length` counts the rest. A step that was not taken has the past of the one that was; the past
// of a mirrored row is mirrored as the row is.
//
// Bytes: reads and writes L*Sp floats a window. Launch: replay_windows grid (2*B,), window_push grid (E,), any block.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"

#include "abi/replay.h"
#include "replay/sum_tree.h"

namespace {

// A distance in the ring, i steps of an environment: a remainder only where it goes round.
FX_DEVICE int ring_distance(int i, int stride, int capacity) {
    const int64_t d = (int64_t)i * stride;
    return d < capacity ? (int)d : (int)(d % capacity);
}

}  // namespace

FX_KERNEL_ANYBLOCK(replay_windows) {
    const int k = (int)blockIdx.x % a.B, next = (int)blockIdx.x / a.B, L = a.L;
    const int row = a.batch_index[k], stride = (int)a.ring->stride;
    const float *present = (next ? a.batch_next_state : a.batch_state) + (int64_t)k * a.Sp;
    float *window = (next ? a.next_window : a.window) + (int64_t)k * L * a.Sp;
    const int ended = row >= 0 ? a.rows[row].ended : 0;
    const bool taken = !(ended & ENDED_COUNTERFACTUAL);
    const int origin = taken ? row : fx::ring_back(row, ended >> ENDED_BACK_SHIFT, a.capacity);
    const float *sign = a.mirrored && row >= 0 && a.mirrored[row] ? a.sign : nullptr;
    int length = 1, last = origin;
    if (row >= 0) {
        // As far back as the episode goes and the ring holds it: rows are numbered from the last clear, the newest is
        // inserted - 1 and stands before the write head.
        const int64_t inserted = (int64_t)a.ring->inserted;
        const int64_t oldest = inserted > a.capacity ? inserted - a.capacity : 0;
        const int newest = fx::ring_back((int)a.ring->position, 1, a.capacity);
        const int64_t number =  // of origin, which may be overwritten already where the row itself is not
            inserted - 1 - fx::ring_back(newest, row, a.capacity) - (taken ? 0 : ended >> ENDED_BACK_SHIFT);
        // Each warp finds both ends for itself, all rows on their way at once: no barrier.
        const int held = fx::lane_reduce(L - 1, L, fx::op_min(), [&](int i) {
            const int back = ring_distance(i + 1, stride, a.capacity);
            const bool there =
                number - (int64_t)(i + 1) * stride >= oldest && !a.rows[fx::ring_back(origin, back, a.capacity)].ended;
            return there ? L : i + 1;
        });
        int steps = 0;
        if (next && taken) {  // s' is behind the n-step window's last row: the first that ends an episode, or the n-th
            steps = fx::lane_reduce(a.n_step - 1, a.n_step - 1, fx::op_min(), [&](int i) {
                const int at = fx::ring_forward(origin, ring_distance(i, stride, a.capacity), a.capacity);
                return a.rows[at].ended ? i : a.n_step - 1;
            });
            last = fx::ring_forward(origin, ring_distance(steps, stride, a.capacity), a.capacity);
        }
        length = min(L, held + (next ? steps + 1 : 0));
    }
    FX_ROWS(l, L) {
        const int j = L - 1 - l, past = j - next;  // s itself stands in the row, taken or not
        const bool held = j < length;
        int at = 0;
        if (j > 0 && held)
            at = past == 0 && !taken ? row : fx::ring_back(last, ring_distance(past, stride, a.capacity), a.capacity);
        float *to = window + (int64_t)l * a.Sp;
        const float *whole = a.state ? a.state + (int64_t)at * a.S : nullptr, *table = nullptr, *own = nullptr;
        if (!whole && j > 0 && held) {
            table = a.features + (int64_t)a.rows[at].feature_row * a.table;
            own = a.portfolio + (int64_t)at * 2 * a.P - a.F;
        }
        FX_LANES(c, a.Sp) {
            float x = 0.0f;
            if (j == 0 || (held && c >= a.goal && c < a.goal + a.goal_width)) {
                x = present[c];
            } else if (held && c < a.S) {
                x = whole ? whole[c] : (c < a.F ? table[c] : own[c]);
                if (sign) x *= sign[c];
            }
            to[c] = x;
        }
    }
    FX_FOR(one, 1) (next ? a.next_length : a.length)[k] = length;
}

FX_KERNEL_ANYBLOCK(window_push) {
    const int e = (int)blockIdx.x, L = a.L;
    const int held = min((a.fresh && a.fresh[e] ? 0 : a.length_before[e]) + 1, L);
    const float *before = a.before + (int64_t)e * L * a.Sp;
    float *after = a.after + (int64_t)e * L * a.Sp;
    FX_FOR(c, a.Sp) {  // a column is one thread's, oldest first: after may be before
        for (int l = 0; l < L - 1; ++l) after[l * a.Sp + c] = l >= L - held ? before[(l + 1) * a.Sp + c] : 0.0f;
        after[(L - 1) * a.Sp + c] =
            c < a.S ? a.state[(int64_t)e * a.S + c] : (c < a.S + a.C ? a.context[c - a.S] : 0.0f);
    }
    __syncthreads();  // everyone has read length_before
    FX_FOR(one, 1) a.length_after[e] = a.ended && a.ended[e] ? 0 : held;
}
