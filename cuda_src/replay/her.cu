// Hindsight experience replay (HER, Andrychowicz et al. 2017, strategy "future"), one block a relabelled row.
//
//   source   row floor((k + xi) / H * B) of the batch: one of every stratum, so that all ages are relabelled alike
//   donor    uniform over the transitions of the source's episode from the source on, as far as they are held: what stands in the
//            achieved columns after the donor becomes the goal of s and s'
//   reward   made anew for each transition of the n-step window, which ends where the drawn one does
//
// An episode's rows stand `stride` apart and share a number that never comes back, so "still the same episode" holds up to one
// row and then no more: a search of HER_WAYS places a round finds the last, in four rounds for a million rows an environment,
// whatever the episode's length. The rows newer than the source are counted from the write head, so none is read across it.
// Launch: grid (H,), block (32,). Bytes a row: 16 Sp, n_step (32 + 8 width) and 32 HER_WAYS a round.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/her.h"
#include "abi/replay.h"
#include "lib/philox.h"
#include "lib/reduce.h"
#include "replay/sum_tree.h"

namespace fx {

// Columns of s of a row.
FX_DEVICE const float *before(const her_relabel_args &a, int row, int column) {
    if (a.state) return a.state + (int64_t)row * a.S + column;
    return a.portfolio + (int64_t)row * 2 * a.P + (column - (a.S - a.P));
}

// Columns of the state that a row's transition led to.
FX_DEVICE const float *after(const her_relabel_args &a, const replay_row &r, int row, int stride, int column) {
    if (!a.state) return a.portfolio + ((int64_t)row * 2 + 1) * a.P + (column - (a.S - a.P));
    if (r.ended) return a.final_state + (int64_t)r.final_slot * a.S + column;
    return a.state + (int64_t)ring_forward(row, stride, a.capacity) * a.S + column;
}

// Transitions of the episode of row i, itself first, that are held with the state that they led to.
FX_DEVICE int episode_left(const her_relabel_args &a, int i, int stride) {
    const int newest = ring_back((int)a.ring->position, 1, a.capacity);
    const int younger = (newest - i + a.capacity) % a.capacity;
    const uint32_t episode = a.rows[i].episode;
    auto same = [&](int j) { return a.rows[ring_forward(i, j * stride, a.capacity)].episode == episode; };
    int low = 0,
        high = younger / stride + 1;  // the row `low` on is of the episode, that `high` on is not, or not there
    while (high - low > 1) {
        const int each = ceil_div(high - low, HER_WAYS + 1), from = low;
        const int found = block_reduce(HER_WAYS, 0, op_sum(), [&](int p) {
            const int j = from + (p + 1) * each;
            return j < high && same(j) ? 1 : 0;
        });
        low += found * each;
        high = min(high, low + each);
    }
    const int last = ring_forward(i, low * stride, a.capacity);
    const replay_row r = a.rows[last];
    if (r.ended & ENDED_ABSENT)
        return low - (a.state ? 1 : 0);  // it is no transition, nor, in vector mode, a successor
    if (!a.state) return low + 1;
    const int64_t number = (int64_t)a.ring->inserted - 1 - (newest - last + a.capacity) % a.capacity;
    const bool stored = r.ended && a.final_owner[r.final_slot] == number;  // not ended: its successor is not there yet
    return low + (stored ? 1 : 0);
}

FX_DEVICE float above(float achieved, float goal) { return achieved > goal ? achieved - goal : 0.0f; }

}  // namespace fx

FX_KERNEL_ANYBLOCK(her_relabel) {
    __shared__ replay_row window[MAX_N_STEP];
    __shared__ float reward[MAX_N_STEP], conviction[MAX_N_STEP];
    const int k = (int)blockIdx.x, stride = (int)a.ring->stride, Sp = a.Sp;
    const uint64_t seed = a.step->seed, rng_step = a.step->rng_step;
    const float gamma = a.step->gamma, scale = a.step->reward_scale;
    const float unit = a.unit ? (float)*a.unit : 1.0f;
    const uint4 random = fx::philox(seed, rng_step, RNG_HER, (uint32_t)k);
    const double at = ((double)k + fx::uniform01_f64(random.x, random.y)) / (double)a.H * (double)a.B;
    const int source = min((int)at, a.B - 1), i = a.drawn_index[source];
    const float *s = a.drawn_state + (int64_t)source * Sp, *next = a.drawn_next_state + (int64_t)source * Sp;
    float *state = a.batch_state + (int64_t)k * Sp, *next_state = a.batch_next_state + (int64_t)k * Sp;
    float *report = a.report + (int64_t)k * HER_COLUMNS;

    if (i < 0) {  // nothing was drawn: per_sample has raised the fault, this row is its copy
        FX_FOR(j, Sp) state[j] = next_state[j] = 0.0f;
        FX_FOR(one, 1) {
            a.batch_action[k] = 0;
            a.batch_return[k] = a.batch_discount[k] = a.batch_priority[k] = 0.0f;
            a.batch_index[k] = a.donor[k] = -1;
            for (int c = 0; c < HER_COLUMNS; ++c) report[c] = 0.0f;
        }
        return;
    }

    const int left = max(fx::episode_left(a, i, stride), 1);
    const int offset = min((int)(fx::uniform01_f64(random.z, random.w) * (double)left), left - 1);
    const int donor = fx::ring_forward(i, offset * stride, a.capacity);
    const float *goal = fx::after(a, a.rows[donor], donor, stride, a.achieved);

    FX_FOR(j, a.n_step) {
        const int row = fx::ring_forward(i, j * stride, a.capacity);
        const replay_row r = a.rows[row];
        const float *now = fx::after(a, r, row, stride, a.achieved);
        window[j] = r;
        conviction[j] = a.conviction ? a.conviction[row] : 1.0f;
        if (a.reward == HER_RETURN) {
            const float was = *fx::before(a, row, a.achieved), own = *fx::before(a, row, a.goal);
            const float less_own = fx::above(*now, own) - fx::above(was, own);
            reward[j] = r.reward + unit * (less_own - (fx::above(*now, *goal) - fx::above(was, *goal)));
        } else {
            float distance2 = 0.0f;
            for (int c = 0; c < a.width; ++c) distance2 += (now[c] - goal[c]) * (now[c] - goal[c]);
            reward[j] = sqrtf(distance2) <= a.tolerance ? 0.0f : -1.0f;
        }
    }
    FX_FOR(j, Sp) {
        const int g = j - a.goal;
        const bool slot = g >= 0 && g < a.width;
        state[j] = slot ? goal[g] : s[j];
        next_state[j] = slot ? goal[g] : next[j];
    }
    __syncthreads();
    float ret = 0.0f, discount = 1.0f;
    int last = 0;
    for (int j = 0; j < a.n_step; ++j) {  // as per_sample does it
        ret += discount * (reward[j] * scale * conviction[j]);
        discount *= gamma;
        last = j;
        if (window[j].ended) break;
    }
    FX_FOR(one, 1) {
        a.batch_action[k] = a.drawn_action[source];
        a.batch_return[k] = ret;
        a.batch_discount[k] = a.drawn_discount[source];
        a.batch_index[k] = i;
        a.batch_priority[k] = a.drawn_priority[source];
        a.donor[k] = donor;
        const float end =
            *fx::after(a, window[last], fx::ring_forward(i, last * stride, a.capacity), stride, a.achieved);
        const bool reached = a.reward == HER_RETURN ? end >= *goal : reward[last] == 0.0f;
        report[HER_OFFSET] = (float)offset;
        report[HER_REWARD] = ret;
        report[HER_REACHED] = reached ? 1.0f : 0.0f;
    }
}
