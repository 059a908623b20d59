// adam_update: AdamW (Kingma & Ba 2015; decoupled weight decay, Loshchilov & Hutter 2019) with the clip of the global
// norm before it and the Polyak target after it, in one pass over the flat buffers: nine 16-byte accesses for four
// parameters.
//
//   c = min(1, max_grad_norm / |g|)          m = b1 f m + (1 - b1) c g      f: restart momentum factor, else 1
//   v = b2 v + (1 - b2) (c g)^2              u = (m / bias1) / (sqrt(v / bias2) + eps) + wd theta      wd: weights only
//   theta -= lr u                            target += tau (theta - target)
//
// The order is that of optax.chain(clip_by_global_norm, adamw): eps outside the root, decay inside the learning rate.
// Every block adds the squares again (a few hundred f64 from L2) rather than wait for one more dependent launch.
// A norm that is not finite changes no parameter, moment or target: the step is skipped, counted, and raised as a
// fault.
//
// Parameters may stand in groups (optim_group): a block belongs to one. A group with a clip of its own has its own norm,
// learning rate and step counter; when its norm is not finite, it alone skips the step, which is counted and no fault.
//
// Launch: grid (ceil(n / per_block)), any block.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"
#include "optim/bias_correction.h"

#include "abi/types.h"
#include "lib/guard.h"

#include "abi/optim.h"

namespace {

// A vector of adjacent parameters and what belongs to them.
struct parameters {
    fx::lanes grad, theta, m, v, target;

    FX_DEVICE parameters(const adam_update_args &a, int64_t at)
        : grad(fx::load_lanes(a.grad + at)),
          theta(fx::load_lanes(a.theta + at)),
          m(fx::load_lanes(a.m + at)),
          v(fx::load_lanes(a.v + at)),
          target(a.target ? fx::load_lanes(a.target + at) : fx::splat(0.0f)) {}
};

// What holds for the group that element `at` belongs to. The first block of a group keeps its statistics.
struct group_settings {
    int index = 0, part_begin = 0, part_end;
    int64_t begin = 0, decay_end;
    float lr, bias1, bias2, max_norm;
    bool own = false;

    FX_DEVICE group_settings(const adam_update_args &a, const step_block &s, int64_t at)
        : part_end(a.parts), decay_end(a.n_decay), lr(s.lr), bias1(s.bias1), bias2(s.bias2), max_norm(s.max_grad_norm) {
        if (!a.groups) return;
        uint64_t skipped;
        const optim_group g = find(a, at, skipped);
        part_begin = g.part_begin, part_end = g.part_end, begin = g.begin, decay_end = g.decay_end;
        lr *= g.lr_factor;
        own = g.max_grad_norm > 0.0f;
        if (!own) return;
        max_norm = g.max_grad_norm;
        // `skipped` changes in this launch only when nobody goes on to use it
        const uint64_t t = s.adam_step - skipped;
        bias1 = fx::bias_correction(s.adam_beta1, t), bias2 = fx::bias_correction(s.adam_beta2, t);
    }

    // The last group that begins at or before `at`, and the updates that it skipped; sets `index`.
    FX_DEVICE optim_group find(const adam_update_args &a, int64_t at, uint64_t &skipped) {
#ifdef FX_GPU
        if (a.groups_n <= 32) {  // a lane a group, all loads in one trip
            const int mine = min((int)threadIdx.x & 31, a.groups_n - 1);
            optim_group g = a.groups[mine];
            skipped = a.stats[mine].skipped;
            index = min(31 - __clz((int)__ballot_sync(0xffffffffu, g.begin <= at)), a.groups_n - 1);
            const auto from = [&](auto value) { return __shfl_sync(0xffffffffu, value, index); };
            skipped = from(skipped), g.begin = from(g.begin), g.decay_end = from(g.decay_end);
            g.part_begin = from(g.part_begin), g.part_end = from(g.part_end);
            g.lr_factor = from(g.lr_factor), g.max_grad_norm = from(g.max_grad_norm);
            return g;
        }
#endif
        while (index + 1 < a.groups_n && a.groups[index + 1].begin <= at) ++index;
        skipped = a.stats[index].skipped;
        return a.groups[index];
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(adam_update) {
    using namespace fx;
    const int64_t begin = (int64_t)blockIdx.x * a.per_block, left = a.n - begin;
    const int vectors = (int)(left < a.per_block ? left : a.per_block) / LANES;
    const step_block s = *a.step;
#ifdef FX_GPU  // the first parameters of each thread are under way while the norm is added up
    const parameters early(a, begin + (int64_t)min((int)threadIdx.x, vectors - 1) * LANES);
#endif
    const group_settings group(a, s, begin);
    const double *part = a.norm_part + group.part_begin;
    float norm = (float)::sqrt(block_sum_f64(group.part_end - group.part_begin, [&](int i) { return part[i]; }));
    bool usable = finite(norm);
    float clip = norm > group.max_norm ? group.max_norm / norm : 1.0f;
    FX_FOR(i, begin == group.begin ? 1 : 0) {
        optim_stats *stats = a.stats + group.index;
        stats->grad_norm = norm;
        stats->clip = usable ? clip : 0.0f;
        if (!usable) stats->skipped += 1;
        if (!usable && !group.own && a.guard) guard_raise(a.guard, GUARD_ADAM_GRAD, CHECK_NON_FINITE, 0, norm);
    }
    if (!usable) return;

    const lanes keep1 = splat(s.adam_beta1 * s.momentum_factor), new1 = splat(1.0f - s.adam_beta1);
    const lanes keep2 = splat(s.adam_beta2), new2 = splat(1.0f - s.adam_beta2), scale = splat(clip);
    const lanes unbias1 = splat(1.0f / group.bias1), unbias2 = splat(1.0f / group.bias2);
    const lanes eps = splat(s.adam_eps), minus_lr = splat(-group.lr), tau = splat(s.tau);
    FX_FOR(q, vectors) {
        int64_t at = begin + (int64_t)q * LANES;
#ifdef FX_GPU
        const parameters x = q == (int)threadIdx.x ? early : parameters(a, at);
#else
        const parameters x(a, at);
#endif
        lanes decay = splat(at < group.decay_end ? s.weight_decay : 0.0f);
        lanes g = scale * x.grad;  // clipped before it is squared
        lanes m = fma(keep1, x.m, new1 * g);
        lanes v = fma(keep2, x.v, new2 * (g * g));
        lanes u = fma(decay, x.theta, m * unbias1 / (sqrt(v * unbias2) + eps));
        lanes theta = fma(minus_lr, u, x.theta);
        store_lanes(a.m + at, m);
        store_lanes(a.v + at, v);
        store_lanes(a.theta + at, theta);
        if (a.target) store_lanes(a.target + at, fma(tau, theta - x.target, x.target));
    }
}
