// The double-DQN C51 loss of one row a block: dueling heads to categorical distributions, greedy action of the online
// network, Bellman projection of the target network's distribution, cross-entropy and expected-value error, their gradient.
//
// C51 and its projection: Bellemare 2017; double DQN: van Hasselt 2016; dueling: Wang 2016; branches with a target each:
// after Tavakoli 2018; importance weight: Schaul 2016. Equations in docs/step/ddqn.md.
//
// Launch: grid (B,), any block up to 1024 (a GPU has use for S + K warps); dynamic shared memory: 4 K N + 2 S +
// (STATS + 4) K + 4 floats, and 3 Np more where these are at most C51_STAGE_FLOATS (a GPU stages the logits).
// Everything is f32, log-probabilities included (known failure K11: bf16 log-probabilities lose mass).
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/loss.h"
#ifdef FX_GPU
#include "loss/c51_row_gpu.h"
extern "C" __global__ void __launch_bounds__(1024) c51_loss(const __grid_constant__ c51_loss_args a);
#else
#include "loss/c51_row_host.h"
#endif

FX_KERNEL_ANYBLOCK(c51_loss) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    fx::c51_row_gpu(a, shared);
#else
    fx::c51_row_host(a, (int)blockIdx.x, shared);
#endif
}
