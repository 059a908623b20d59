// What all states of one moment have in common (Replay.context), and the account that its drawdown comes from.
//
//   append_context    the last C columns of state rows that are to be acted on                      grid (R,), any block
//   replay_drawdown   at collection every environment keeps the sum of its episode's rewards and its peak; out comes the mean of
//                     peak - sum over those whose episode goes on, 0 where none does                 grid (1,), any block
//
// f64, fixed order. Launched only where there is a context.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/replay.h"
#include "lib/reduce.h"

FX_KERNEL_ANYBLOCK(append_context) {
    FX_FOR(j, a.C) a.state[(int64_t)blockIdx.x * a.Sp + a.at + j] = a.context[j];
}

FX_KERNEL_ANYBLOCK(replay_drawdown) {
    FX_FOR(e, a.E) {
        // A factor, not a selection: GCC 12 widens the mask of a selected f64 wrongly (docs/findings.md).
        const double on = (double)(a.ended[e] == 0), sum = on * (a.account[2 * e] + (double)a.reward[e]);
        const double before = on * a.account[2 * e + 1];
        a.account[2 * e] = sum, a.account[2 * e + 1] = before > sum ? before : sum;
    }
    __syncthreads();
    const double total = fx::block_sum_f64(a.E, [&](int e) { return a.account[2 * e + 1] - a.account[2 * e]; });
    const int going = fx::block_reduce(a.E, 0, fx::op_sum(), [&](int e) { return a.ended[e] == 0 ? 1 : 0; });
    FX_FOR(only, 1) *a.drawdown = going ? total / (double)going : 0.0;
}
