// The gradient budget and the head-output gradient: dlogits = s_ce g_ce + s_mse g_mse, carried from the taken actions'
// logits to the value and advantage outputs. Each part's norm is bounded after the blend weights (known failure K11: a
// budget applied without regard to the blend).
//
// Launch: grid (B,), any block. Every block adds up the R squared norms itself: cheaper than one more node.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/loss.h"
#include "loss/head_gradient.h"

FX_KERNEL_ANYBLOCK(budget_blend) {
    const int row = (int)blockIdx.x, K = a.K, N = a.N;
    fx::budget_scales s = {1.0f, 1.0f};
    if (a.step->grad_budget > 0.0f) {
        auto mse_norm2 = [&](int r) { return a.rows[(int64_t)r * a.W + STAT_MSE_NORM2]; };
#ifdef FX_GPU  // under way beside the other sum's: no load overtakes the barriers in that
        const int mine = (int)threadIdx.x;
        const float early = mse_norm2(min(mine, a.R - 1));
#endif
        float ce2 = fx::block_sum(a.R, [&](int r) { return a.rows[(int64_t)r * a.W + STAT_CE_NORM2]; });
#ifdef FX_GPU
        float mse2 = fx::block_sum(a.R, [&](int r) { return r == mine ? early : mse_norm2(r); });
#else
        float mse2 = fx::block_sum(a.R, mse_norm2);
#endif
        s = fx::gradient_budget(a.step->grad_budget, ce2, mse2);
    }
    const float *ce = a.ce_grad + (int64_t)row * K * N, *mse = a.mse_grad + (int64_t)row * K * N;
    fx::write_head_gradient(a.dlogits + (int64_t)row * a.Np, K, a.S, N, a.Np, a.branch_sizes, a.action[row],
                            [&](int b, int j) { return s.ce * ce[b * N + j] + s.mse * mse[b * N + j]; });
}
