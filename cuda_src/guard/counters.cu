// The first node of the step: advances the counters and latches everything that may change between replays, so that every
// other kernel reads one struct in device memory (15 kernels that each read one word of mapped memory cost 31 us, measured).
//
// Launch: one block, one thread works. Schedules are functions of t = min(step, T), so a step beyond the horizon T repeats
// its last values. Equations in docs/step/counters.md.
#include "lib/kernel.h"
#include "optim/bias_correction.h"

#include "abi/types.h"

#include "abi/control.h"

namespace {

FX_DEVICE float cos_pi(float x) {
#ifdef FX_GPU
    return cospif(x);  // no slow path, hence no stack
#else
    return (float)cos(3.14159265358979323846 * (double)x);
#endif
}

// Falls from `from` at phase 0 to `to` at phase 1 along half a cosine (Loshchilov & Hutter 2017).
FX_DEVICE float cosine(float from, float to, float phase) {
    return to + 0.5f * (from - to) * (1.0f + cos_pi(phase));
}

// Phase in [0, 1] of the period that step t is in. A restart begins at t = k P for k >= 1, but not at T or beyond: there
// the last period ends.
FX_DEVICE float restart_phase(uint64_t t, uint64_t horizon, uint64_t period) {
    uint64_t within = t >= horizon && t > 0 ? (t - 1) % period + 1 : t % period;
    return (float)((double)within / (double)period);
}

// Periodic work is due at steps P, 2P, ... below the horizon T: beyond it nothing new begins.
FX_DEVICE bool due(uint64_t step, uint64_t horizon, uint32_t period) {
    return period > 0 && step > 0 && step < horizon && step % period == 0;
}

}  // namespace

FX_KERNEL_ANYBLOCK(counters) {
    FX_FOR(only, 1) {
        const control_block c = *a.control;
        train_state s = *a.state;
        step_block out;
        out.started_ns = fx::globaltimer();
        out.seed = c.seed;
        out.step = s.step;
        out.rng_step = s.rng_step;

        const uint64_t horizon = c.horizon > 0 ? c.horizon : 1, t = s.step < horizon ? s.step : horizon;
        const uint64_t period = c.restart_period > 0 ? c.restart_period : horizon;
        const float progress = (float)((double)t / (double)horizon);
        out.lr = cosine(c.lr, c.lr_min, restart_phase(t, horizon, period));
        out.tau = cosine(c.tau_start, c.tau_end, progress);
        out.beta_per = c.beta_per_start + (c.beta_per_end - c.beta_per_start) * progress;
        out.momentum_factor =
            c.restart_period > 0 && t > 0 && t < horizon && t % period == 0 ? c.restart_momentum : 1.0f;

        s.adam_step += 1;
        out.adam_step = s.adam_step;
        out.adam_beta1 = c.adam_beta1;
        out.adam_beta2 = c.adam_beta2;
        out.adam_eps = c.adam_eps;
        out.weight_decay = c.weight_decay;
        out.bias1 = fx::bias_correction(c.adam_beta1, s.adam_step);
        out.bias2 = fx::bias_correction(c.adam_beta2, s.adam_step);
        out.max_grad_norm = c.max_grad_norm;

        out.gamma = c.gamma;
        out.alpha_per = c.alpha_per;
        out.eps_per = c.eps_per;
        out.alpha_c51 = c.alpha_c51;
        out.label_smoothing = c.label_smoothing;
        out.grad_budget = c.grad_budget;
        out.reward_scale = c.reward_scale;
        out.v_min = c.v_min;
        out.v_max = c.v_max;
        out.delta_z = (c.v_max - c.v_min) / (float)(a.N - 1);
        out.q_clip = c.q_clip;
        out.alarm_edge_mass = c.alarm_edge_mass;
        out.alarm_spike_share = c.alarm_spike_share;
        out.alarm_atom_use = c.alarm_atom_use;
        out.spike_mass = c.spike_mass;
        out.min_priority = 0x7f800000u;  // infinity: per_sample takes the minimum
        out.due = (due(s.step, horizon, c.vaccine_period) ? DUE_VACCINE : 0u) |
                  (due(s.step + 1, horizon, c.vaccine_period) ? DUE_KEEP_GRADIENT : 0u) |
                  (due(s.step, horizon, c.causal_period) ? DUE_CAUSAL : 0u);
        *a.step = out;

        s.step += 1;
        s.rng_step += 1;
        *a.state = s;
    }
}
