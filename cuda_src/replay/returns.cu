// Discounted returns at collection, for PopArt (docs/step/popart.md): every environment keeps
//
//   G <- r + gamma G,   0 again after an end,
//
// steps that were not taken left out, and count, mean and M2 over all of them since the last clear are combined in f64: the E values of one insert by two passes,
// then with what was there by the pairwise update of Chan, Golub & LeVeque 1983. Sums have a fixed order: same launch, same bits.
//
// One block: E values of 20 bytes each; launched only where the moments are wanted.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/replay.h"
#include "lib/reduce.h"

FX_KERNEL_ANYBLOCK(replay_returns) {
    const double gamma = (double)a.control->gamma;
    auto present = [&](int e) { return !(a.ended[e] & (ENDED_ABSENT | ENDED_COUNTERFACTUAL)); };
    FX_FOR(e, a.E) a.running[e] = present(e) ? (double)a.reward[e] + gamma * a.running[e] : 0.0;
    __syncthreads();
    const int n = fx::block_reduce(a.E, 0, fx::op_sum(), [&](int e) { return present(e) ? 1 : 0; });
    if (n == 0) return;
    // An absent one has 0. Factors, not selections: GCC 12 widens the mask of a selected f64 load wrongly (docs/findings.md).
    const double mean = fx::block_sum_f64(a.E, [&](int e) { return a.running[e]; }) / (double)n;
    const double m2 = fx::block_sum_f64(a.E, [&](int e) {
        const double off = a.running[e] - mean;
        return (double)present(e) * off * off;
    });
    __syncthreads();  // everyone has read running
    FX_FOR(e, a.E)
        if (a.ended[e]) a.running[e] = 0.0;
    FX_FOR(one, 1) {
        return_stats s = *a.returns;
        const double before = (double)s.count, count = before + (double)n, delta = mean - s.mean;
        s.m2 += m2 + delta * delta * before * (double)n / count;
        s.mean += delta * (double)n / count;
        s.count += (uint64_t)n;
        *a.returns = s;
    }
}
