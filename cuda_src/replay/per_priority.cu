// New priorities of the drawn rows, P = (|delta| + eps_per)^alpha_per (Schaul et al. 2016), and the sums above them,
// recomputed exactly, so that nothing drifts.
//
// batch_index never falls in k, so equal rows are neighbours, and so are the rows of one block of sums: the last of a run
// owns it. No claim has to be stored, and the highest batch index wins. A block writes the rows of its run, then their sum;
// the sums of the third level, where there is one, need all of these and are a launch of their own.
// Launch: grid (B,), block (32,).
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/replay.h"
#include "replay/sum_tree.h"

namespace fx {

FX_DEVICE float new_priority(float td_error, const step_block *step) {
    const float largest = 3.402823466e38f, size = fabsf(td_error);
    if (!(size <= largest)) return -1.0f;  // also where alpha is 0 and powf would make 1 of NaN
    const float p = powf(size + step->eps_per, step->alpha_per);
    return p <= largest ? p : -1.0f;
}

// Whether k is the last of the batch to draw from its run of `width` rows.
FX_DEVICE bool last_of_run(const int32_t *index, int k, int B, int width) {
    return k + 1 == B || index[k + 1] / width != index[k] / width;
}

}  // namespace fx

FX_KERNEL_ANYBLOCK(per_priority) {
    const int k = (int)blockIdx.x, row = a.batch_index[k];
    const float largest = fx::look(&a.state->max_priority), mine = fx::new_priority(a.td_error[k], a.step);
    if (row < 0) return;
    FX_FOR(one, 1) {
        // positive floats order like their bits, so the maximum is one of integers
        if (mine < 0.0f) atomicAdd(&a.state->skipped, 1u);
        else if (mine > largest) atomicMax(reinterpret_cast<int *>(&a.state->max_priority), __float_as_int(mine));
    }
    if (!fx::last_of_run(a.batch_index, k, a.B, SUM_FANOUT)) return;

    const int block = row / SUM_FANOUT, chunk = 32;
    for (int top = k; top >= 0 && a.batch_index[top] / SUM_FANOUT == block; top -= chunk) {
        FX_FOR(j, chunk) {
            const int i = top - j;
            if (i >= 0) {
                const int at = a.batch_index[i];
                const float p = fx::new_priority(a.td_error[i], a.step);
                if (at / SUM_FANOUT == block && fx::last_of_run(a.batch_index, i, a.B, 1) && p >= 0.0f)
                    a.priority[at] = p;
            }
        }
    }
    __syncthreads();
    const double sum = fx::sum_of_256(a.priority + (int64_t)block * SUM_FANOUT);
    FX_FOR(one, 1) a.block_sum[block] = sum;
}

FX_KERNEL_ANYBLOCK(per_priority_upper) {
    const int k = (int)blockIdx.x, row = a.batch_index[k];
    if (row < 0 || !fx::last_of_run(a.batch_index, k, a.B, SUM_FANOUT * SUM_FANOUT)) return;
    const int block = row / (SUM_FANOUT * SUM_FANOUT);
    const double sum = fx::sum_of_256(a.block_sum + block * SUM_FANOUT);
    FX_FOR(one, 1) a.super_sum[block] = sum;
}
