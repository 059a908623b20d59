// Causal intervention: how much Q changes when a group of features is set to its reference while the rest stays as observed.
//
//   causal_intervene   rows under do(s_g = reference), every group           grid (R, G); dynamic shared memory Sp floats
//   (linear_forward    the network on all G*R of them)
//   causal_effect      e_g,r = mean_{b,a} |Q_b,a(do) - Q_b,a|               grid (G*R), block (128)
//   causal_update      I_g <- I_g + max(rate, 1/n) (mean_r e_g,r - I_g)     grid (1); n interventions so far, this one included
//
// The first 1/rate interventions are averaged, then the mean runs. An effect that is not finite stays so: it is never left out.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"

#include "abi/causal.h"
#include "lib/dueling.h"

namespace {

// n rows of Sp floats: what is observed, but for columns [begin, end) from row `first` on, which are at the reference.
FX_DEVICE void intervene(const float *observed, float *out, const float *reference, int begin, int end, int first, int n,
                      int Sp) {
    FX_FOR(i, n * Sp / fx::LANES) {
        const int q = i * fx::LANES, l = q / Sp, c = q - l * Sp;
        fx::store_lanes(out + q, fx::load_lanes(observed + q));
        if (l < first) continue;
        for (int k = max(begin, c); k < min(end, c + fx::LANES); ++k) out[l * Sp + k] = reference[k - begin];
    }
}

}  // namespace

FX_KERNEL_ANYBLOCK(causal_intervene) {
    FX_DYNAMIC_SHARED(float, reference);  // of the group's columns
    const int r = (int)blockIdx.x, g = (int)blockIdx.y, begin = a.bounds[g], end = a.bounds[g + 1], Sp = a.Sp;
    FX_FOR(c, end - begin) {
        float sum = 0.0f;
        if (a.mean) {
#pragma unroll 8
            for (int i = 0; i < a.R; ++i) sum += a.state[(size_t)i * Sp + begin + c];
        }
        reference[c] = sum / (float)a.R;
    }
    __syncthreads();
    const size_t row = (size_t)g * a.R + r;
    intervene(a.state + (size_t)r * Sp, a.x + row * Sp, reference, begin, end, 0, 1, Sp);
    if (!a.L) return;
    const size_t states = (size_t)a.L * Sp;
    intervene(a.window + r * states, a.past + row * states, reference, begin, end, a.L - a.length[r], a.L, Sp);
    FX_FOR(only, 1) a.past_length[row] = a.length[r];
}

FX_KERNEL_ANYBLOCK(causal_effect) {
    __shared__ float base[fx::MAX_BRANCHES * fx::MAX_ATOMS];
    __shared__ float changed[fx::MAX_ACTIONS], observed[fx::MAX_ACTIONS];
    const int row = (int)blockIdx.x;
    const float v_min = a.step->v_min, delta_z = a.step->delta_z;
    fx::expected_returns(a.changed + (size_t)row * a.Np, a.branch_sizes, a.K, a.S, a.N, v_min, delta_z, base, changed);
    fx::expected_returns(a.observed + (size_t)(row % a.R) * a.Np, a.branch_sizes, a.K, a.S, a.N, v_min, delta_z, base,
                         observed);
    const float sum = fx::block_sum(a.S, [&](int s) { return fabsf(changed[s] - observed[s]); });
    FX_FOR(only, 1) a.effect[row] = sum / (float)a.S;
}

FX_KERNEL_ANYBLOCK(causal_update) {
    const uint32_t n = *a.measured + 1;
    const float weight = fmaxf(a.rate, 1.0f / (float)n);
    __syncthreads();  // every thread has read the count
    FX_ROWS(g, a.G) {
        const float effect = fx::lane_sum(a.R, [&](int r) { return a.effect[g * a.R + r]; }) / (float)a.R;
        FX_LANE_0 a.importance[g] += weight * (effect - a.importance[g]);
    }
    __syncthreads();
    const float total = fx::block_sum(a.G, [&](int g) { return a.importance[g]; });
    const float largest = fx::block_max(a.G, [&](int g) { return a.importance[g]; });
    const float entropy = fx::block_sum(a.G, [&](int g) {
        const float share = a.importance[g] / total;
        return share > 0.0f ? -share * logf(share) : (share == share ? 0.0f : share);
    });
    FX_FOR(only, 1) {
        *a.measured = n;
        *a.largest = largest;
        *a.entropy = a.G == 1 || total == 0.0f ? 1.0f : entropy / logf((float)a.G);
    }
}
