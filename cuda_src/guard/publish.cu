// The last node of the step: raises the alarms and writes one record into the mapped ring that the host drains. It joins
// every sink of the graph, so what it reads is final; the statistics were added up beside the backward pass (row_stats).
//
// A record is torn-proof: sequence 0, fence, payload, fence, sequence = step + 1; the reader checks the sequence on both
// sides. A fence to the host's memory takes about a microsecond, so the first one passes in a warp of its own while another
// loads everything at once and puts the record together in shared memory, from where it leaves in one write.
// Launch: one block, any size (a GPU has use for two warps); dynamic shared memory W floats.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/control.h"
#include "abi/loss.h"
#include "lib/guard.h"
#include "lib/rows.h"
#include "loss/head_gradient.h"

#include <stddef.h>

namespace fx {

// step % capacity: a 64-bit remainder takes a GPU ten times as long as a 32-bit one.
FX_DEVICE int ring_slot(uint64_t step, int capacity) {
    return step >> 32 ? (int)(step % (uint64_t)capacity) : (int)((uint32_t)step % (uint32_t)capacity);
}

// Global to shared memory by one warp, all loads in flight at once.
FX_DEVICE void load_row(float *row, const float *__restrict__ from, int W) {
#ifdef FX_GPU
    constexpr int most = (STATS + 256 + 31) / 32;
    const int lane = (int)(threadIdx.x & 31);
    float x[most];
#pragma unroll
    for (int i = 0; i < most; ++i) x[i] = lane + 32 * i < W ? from[lane + 32 * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < most; ++i)
        if (lane + 32 * i < W) row[lane + 32 * i] = x[i];
    __syncwarp();
#else
    for (int c = 0; c < W; ++c) row[c] = from[c];
#endif
}

// What is reported of Q lies within the support, or the reduction that made it is wrong: -1e30 was the seed of a maximum over
// no rows, or over NaN (known failure K11). Every row's own Q was checked where it was computed.
FX_DEVICE uint64_t check_reported(guard_block *guard, uint64_t key, const step_block &step, const step_record &r) {
    const float limit = q_limit(fmaxf(fabsf(step.v_min), fabsf(step.v_max)));
    const float reported[] = {r.q_min, r.q_max, r.q_mean, r.target_mean};
    bool within = true;
    for (int i = 0; i < 4; ++i) within = within && fabsf(reported[i]) <= limit;
    if (within) return key;
    for (int i = 0; i < 4; ++i) guard_bound(guard, GUARD_PUBLISH, CHECK_Q_RANGE, (uint32_t)i, reported[i], limit);
    return guard->key;
}

}  // namespace fx

FX_KERNEL_ANYBLOCK(publish) {
    FX_DYNAMIC_SHARED(float, total);  // (W,) statistics of the batch
    __shared__ union {
        step_record record;
        uint64_t words[sizeof(step_record) / sizeof(uint64_t)];
    } out;
    const int N = a.N;
    const step_block step = *a.step;
    const optim_stats optim = *a.optim;
    const uint64_t guard_key = a.guard->key;
    const uint32_t replay_size = a.replay->size, replay_skipped = a.replay->skipped;
    alarm_block alarms = *a.alarms;
    const int slot = fx::ring_slot(step.step, a.capacity);
    step_record *record = a.records + slot;
    volatile uint64_t *sequence = &record->sequence;
    FX_FOR(i, blockDim.x) {
        if (i == (int)blockDim.x - 1) {
            *sequence = 0;
            __threadfence_system();
        }
    }
    FX_ROWS(only, 1) {
        fx::load_row(total, a.total, a.W);
        const float ce_rest = a.rest ? a.rest[STAT_CE_NORM2] : 0.0f, mse_rest = a.rest ? a.rest[STAT_MSE_NORM2] : 0.0f;
        const float mean = 1.0f / (float)a.B;
        const float entropy = fx::lane_sum(N, [&](int j) {
            float m = total[STATS + j] * mean;
            return m > 0.0f ? -m * logf(m) : (m == m ? 0.0f : m);  // NaN stays NaN
        });
        FX_LANE_0 {
            const float atom_use = expf(entropy) / (float)N, edge_mass = total[STAT_EDGE_MASS] * mean;
            const float spike_share =
                total[STAT_NON_TERMINAL] > 0.0f ? total[STAT_SPIKES] / total[STAT_NON_TERMINAL] : 0.0f;
            const fx::budget_scales scales =
                fx::gradient_budget(step.grad_budget, total[STAT_CE_NORM2] + ce_rest, total[STAT_MSE_NORM2] + mse_rest);
            alarms.edge_mass += edge_mass > step.alarm_edge_mass;
            alarms.spike_share += spike_share > step.alarm_spike_share;
            alarms.q_clip += total[STAT_Q_CLIPPED] > 0.0f;
            alarms.atom_use += atom_use < step.alarm_atom_use;
            *a.alarms = alarms;

            step_record &r = out.record;
            r.step = step.step;
            r.started_ns = step.started_ns;
            r.loss = total[STAT_LOSS] * mean;
            r.ce = total[STAT_CE] * mean;
            r.mse = total[STAT_MSE] * mean;
            r.td_error = total[STAT_TD_ERROR] * mean;
            r.q_mean = total[STAT_Q] * mean;
            r.q_min = total[STAT_Q_MIN];
            r.q_max = total[STAT_Q_MAX];
            r.target_mean = total[STAT_TARGET] * mean;
            r.weight_mean = total[STAT_WEIGHT] * mean;
            r.atom_use = atom_use;
            r.edge_mass = edge_mass;
            r.spike_share = spike_share;
            r.grad_norm = optim.grad_norm;
            r.clip = optim.clip;
            r.ce_scale = scales.ce;
            r.mse_scale = scales.mse;
            r.lr = step.lr;
            r.tau = step.tau;
            r.beta_per = step.beta_per;
            r.alpha_c51 = step.alpha_c51;
            r.alarm_edge_mass = alarms.edge_mass;
            r.alarm_spike_share = alarms.spike_share;
            r.alarm_q_clip = alarms.q_clip;
            r.alarm_atom_use = alarms.atom_use;
            r.replay_size = replay_size;
            r.replay_skipped = replay_skipped;
            r.guard_key = fx::check_reported(a.guard, guard_key, step, r);
            r.ended_ns = fx::globaltimer();
        }
    }
    __syncthreads();
    static_assert(offsetof(step_record, sequence) == 0, "the words after the first are the payload");
    volatile uint64_t *words = sequence;
    FX_FOR(w, sizeof(step_record) / sizeof(uint64_t) - 1) words[w + 1] = out.words[w + 1];
    volatile float *metrics = a.metrics_ring + (size_t)slot * a.M;
    FX_FOR(m, a.M) metrics[m] = a.metrics[m];
    __syncthreads();
    FX_FOR(only, 1) {
        __threadfence_system();  // cumulative: covers what the barrier made this thread see
        *sequence = step.step + 1;
    }
}
