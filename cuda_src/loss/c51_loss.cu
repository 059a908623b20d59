// The double-DQN C51 loss of one row a block: dueling heads to categorical distributions, greedy action of the online
// network, Bellman projection of the target network's distribution, cross-entropy and expected-value error, their gradient.
//
// C51 and its projection: Bellemare 2017; double DQN: van Hasselt 2016; dueling: Wang 2016; branches with a target each:
// after Tavakoli 2018; importance weight: Schaul 2016. Equations in docs/step/ddqn.md.
//
// Launch: grid (B,), block 32 (K + 1) threads on a GPU, any on the host; dynamic shared memory: 4 K N + S + STATS K + 4 floats, or
// those and 3 Np for c51_loss, which has the logits there on a GPU.
// Bytes a row: 12 Np + 4 Np for dlogits + 4 W.
// Everything is f32, log-probabilities included (known failure K11: bf16 log-probabilities lose mass).
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/loss.h"
#ifdef FX_GPU
#include "loss/c51_row_gpu.h"
#define ROW_THREADS (32 * (fx::MAX_BRANCHES + 1))
// 3 blocks: without, ptxas spills three registers on sm_90
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 3) c51_loss(const __grid_constant__ c51_loss_args a);
extern "C" __global__ void __launch_bounds__(ROW_THREADS) c51_loss_wide(const __grid_constant__ c51_loss_wide_args a);
#else
#include "loss/c51_row_host.h"
#endif

FX_KERNEL_ANYBLOCK(c51_loss) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    fx::c51_row_gpu<C51_NARROW / 32, true>(a, shared);
#else
    fx::c51_row_host(a, (int)blockIdx.x, shared);
#endif
}

// More than C51_NARROW atoms, or rows longer than C51_STAGE_FLOATS: a kernel of its own, since a thread of the other would have to
// have its registers.
FX_KERNEL_ANYBLOCK(c51_loss_wide) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    fx::c51_row_gpu<fx::MAX_ATOMS / 32, false>(a, shared);
#else
    fx::c51_row_host(a, (int)blockIdx.x, shared);
#endif
}
