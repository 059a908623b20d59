// Gradient vaccine (Wang, Tsvetkov, Firat & Cao 2021, algorithm 1), its tasks being our time steps: g the gradient of this
// step, p that of the step before, phi their cosine, phi* its running target.
//
//   if phi < phi*:  g += |g| (phi* sqrt(1 - phi^2) - phi sqrt(1 - phi*^2)) / (|p| sqrt(1 - phi*^2)) p
//   phi* = min((1 - rate) phi* + rate phi, target_max)
//
// so that the changed gradient has cosine phi* with p. Runs after the backward pass and before the clip: the changed gradient
// also replaces its squares, so that it is what the clip sees.
//
//   vaccine_dots    partial sums of <g, p>, |g|^2, |p|^2            grid (blocks)
//   vaccine_apply   adds them up again in every block, then g       grid (blocks)
//   vaccine_keep    p = g, on the step before                       grid (ceil(n/per_block))
//
// Each returns at once when it is not due: a dependent launch that does nothing is about an eighth of a not-taken IF node
// (docs/step/maintenance.md). Sums in f64, fixed order. 8 bytes and 6 flops an element for the sums, 12 bytes for the change.
//
// The target is read by all blocks and written by one, so it stands in two places that take turns from vaccine to vaccine.
// Where a length is 0 or not finite there is no cosine: gradient and target stay, and adam meets the gradient as it is.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"

#include "abi/types.h"
#include "lib/guard.h"

#include "abi/vaccine.h"

namespace {

// Elements of a block: [begin, begin + LANES * vectors).
struct range {
    int64_t begin;
    int vectors;
    FX_DEVICE range(int64_t n, int per_block) : begin((int64_t)blockIdx.x * per_block) {
        const int64_t left = n - begin;
        vectors = (int)(left < 0 ? 0 : left < per_block ? left : per_block) / fx::LANES;
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(vaccine_dots) {
    using namespace fx;
    if (!(a.step->due & DUE_VACCINE)) return;
    const range own(a.n, a.per_block);
    const float *g = a.grad + own.begin, *p = a.previous + own.begin;
    const int n = own.vectors * LANES;
    const double dot = block_sum_f64(n, [&](int i) { return (double)g[i] * (double)p[i]; });
    const double gg = block_sum_f64(own.vectors, [&](int q) { return sum_of_squares(load_lanes(g + q * LANES)); });
    const double pp = block_sum_f64(own.vectors, [&](int q) { return sum_of_squares(load_lanes(p + q * LANES)); });
    FX_FOR(only, 1) {
        double *part = a.part + 3 * blockIdx.x;
        part[0] = dot, part[1] = gg, part[2] = pp;
    }
}

FX_KERNEL_ANYBLOCK(vaccine_apply) {
    using namespace fx;
    if (!(a.step->due & DUE_VACCINE)) return;
    const double dot = block_sum_f64(a.blocks, [&](int i) { return a.part[3 * i]; });
    const double g_length = ::sqrt(block_sum_f64(a.blocks, [&](int i) { return a.part[3 * i + 1]; }));
    const double p_length = ::sqrt(block_sum_f64(a.blocks, [&](int i) { return a.part[3 * i + 2]; }));
    const int turn = (int)(a.step->step / a.period & 1);
    const double target = a.target[turn];
    const bool usable = finite((float)g_length) && finite((float)p_length) && g_length > 0.0 && p_length > 0.0;
    const double ratio = usable ? dot / (g_length * p_length) : 0.0;
    const double phi = ratio > 1.0 ? 1.0 : ratio < -1.0 ? -1.0 : ratio;
    // the length of what is added, in lengths of g
    const double across = ::sqrt((1.0 - target) * (1.0 + target));
    const double added =
        usable && phi < target ? (target * ::sqrt((1.0 - phi) * (1.0 + phi)) - phi * across) / across : 0.0;
    const float factor = (float)(added > 0.0 ? added * g_length / p_length : 0.0);
    const bool changes = factor > 0.0f && finite(factor);

    FX_FOR(only, blockIdx.x == 0 ? 1 : 0) {
        const double next = target + (double)a.rate * (phi - target);
        const float kept = usable ? (next < a.target_max ? (float)next : a.target_max) : (float)target;
        a.target[1 - turn] = kept;
        *a.now = kept;
        if (usable) *a.cosine = (float)phi;
        *a.added = changes ? (float)added : 0.0f;
    }
    if (!changes) return;
    const range own(a.n, a.per_block);
    const lanes c = splat(factor);
    const double squares = block_sum_f64(own.vectors, [&](int q) {
        const int64_t at = own.begin + (int64_t)q * LANES;
        const lanes g = fma(c, load_lanes(a.previous + at), load_lanes(a.grad + at));
        store_lanes(a.grad + at, g);
        return sum_of_squares(g);
    });
    const int first = (int)blockIdx.x;
    FX_FOR(i, (a.parts - first - 1) / a.blocks + 1) a.norm_part[first + i * a.blocks] = i == 0 ? squares : 0.0;
}

FX_KERNEL_ANYBLOCK(vaccine_keep) {
    using namespace fx;
    if (!(a.step->due & DUE_KEEP_GRADIENT)) return;
    const range own(a.n, a.per_block);
    FX_FOR(q, own.vectors) {
        const int64_t at = own.begin + (int64_t)q * LANES;
        store_lanes(a.previous + at, load_lanes(a.grad + at));
    }
}
