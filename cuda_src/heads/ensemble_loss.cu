// An ensemble of H advantage heads on one value head (docs/step/ensemble.md), a row a block: of the E = H - 1 heads beside the
// network's own each its C51 loss with a target of its own, and for all H the similarity of their centred advantages.
//
//   l_h,b,a = V + A_h,b,a - mean_a A_h,b,a                            (dueling, Wang 2016)
//   loss_i  = w_i/E sum_e sum_b [alpha CE(m'_e,b, p_e,b) + (1 - alpha) (Q_e,b - y_e,b)^2] + lambda D_i,  mean over the rows
//   D_i     = 2/(H(H-1)) sum_{h<k} exp(-|c_h - c_k|^2 / (2 S sigma^2)),  c_h,b,a = (Q_h,b,a - mean_a Q_h,b,a) / delta_z
//
// C51 and its projection: Bellemare 2017; the kernel repels heads in what they say, not in their parameters: D'Angelo & Fortuin
// 2021. Every action of every head has a gradient d by its logits.
//
// Launch: grid (B,), any block of at most ENSEMBLE_THREADS (a warp a branch of a head: H K of them, E K targets, and one); dynamic
// shared memory: children/ensemble.py. H S N exponentials, on the host three times; reads (2 N + S N) + 2 E S N floats a row,
// writes Np + Mp.
#include "lib/kernel.h"
#include "lib/lanes.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "abi/ensemble.h"
#include "heads/share.h"
#include "lib/dueling.h"
#ifdef FX_GPU
#include "heads/ensemble_row_gpu.h"
extern "C" __global__ void __launch_bounds__(ENSEMBLE_THREADS)
    ensemble_loss(const __grid_constant__ ensemble_loss_args a);
extern "C" __global__ void __launch_bounds__(ENSEMBLE_WIDE_THREADS)
    ensemble_loss_wide(const __grid_constant__ ensemble_loss_wide_args a);
#else
#include "heads/ensemble_row_host.h"
#endif

FX_KERNEL_ANYBLOCK(ensemble_loss) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    fx::ensemble_row_gpu<HEAD_NARROW / 32, true>(a, shared);
#else
    fx::ensemble_row_host(a, (int)blockIdx.x, shared);
#endif
}

// More than HEAD_NARROW atoms, or logits that leave no room in shared memory: see loss/c51_loss.cu.
FX_KERNEL_ANYBLOCK(ensemble_loss_wide) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    fx::ensemble_row_gpu<fx::MAX_ATOMS / 32, false>(a, shared);
#else
    fx::ensemble_row_host(a, (int)blockIdx.x, shared);
#endif
}

// The heads' gradient within its share of the gradient budget, and the means of what the rows report, by the last block. Every block
// adds up the B squared norms itself: cheaper than one more node. Launch: grid (2 at least; at most B + 1,), any block.
FX_KERNEL_ANYBLOCK(ensemble_scale) {
    using namespace fx;
    const float scale = share_scale(a.share * a.step->grad_budget, a.B,
                                    [&](int r) { return a.rows[r * ENSEMBLE_COLUMNS + ENSEMBLE_NORM2]; });
    if (blockIdx.x + 1 == gridDim.x) {
        for (int c = 0; c < ENSEMBLE_NORM2; ++c) {
            const float sum = block_sum(a.B, [&](int r) { return a.rows[r * ENSEMBLE_COLUMNS + c]; });
            FX_FOR(only, 1) a.metrics[c] = sum / (float)a.B;
        }
        FX_FOR(only, 1) a.metrics[ENSEMBLE_NORM2] = scale;
        return;
    }
    if (scale == 1.0f) return;
    for (int row = (int)blockIdx.x; row < a.B; row += (int)gridDim.x - 1) {
        FX_FOR(i, a.Mp / LANES) {
            float *at = a.dmore + (int64_t)row * a.Mp + (int64_t)i * LANES;
            store_lanes(at, splat(scale) * load_lanes(at));
        }
    }
}

// V's gradient and that of the network's own advantages onto dlogits, within the same share; a block takes every gridDim-th row.
// Launch: grid (at most B,), any block.
FX_KERNEL_ANYBLOCK(ensemble_blend) {
    using namespace fx;
    const float scale = share_scale(a.share * a.step->grad_budget, a.B,
                                    [&](int r) { return a.rows[r * ENSEMBLE_COLUMNS + ENSEMBLE_NORM2]; });
    for (int row = (int)blockIdx.x; row < a.B; row += (int)gridDim.x)
        add_scaled_row(a.dlogits, a.part, scale, row, a.Np);
}
