// ensemble_values: the sum over the heads beside the network's own of the expected return of each action, a row a block. Added to
// that of the network's head it chooses a* (docs/step/ensemble.md).
//
// Launch: grid (R,), any block (a warp a softmax: E S of them); dynamic shared memory E K N + E S floats. Reads N + E S N floats
// a row, writes S.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/ensemble.h"
#include "lib/dueling.h"

FX_KERNEL_ANYBLOCK(ensemble_values) {
    FX_DYNAMIC_SHARED(float, shared);
    const int row = (int)blockIdx.x, S = a.S, E = a.E;
    float *q = shared + E * a.K * a.N;  // (E, S)
    fx::expected_returns(a.logits + (int64_t)row * a.Np, a.more + (int64_t)row * a.Mp, E, a.branch_sizes, a.K, S, a.N,
                         a.step->v_min, a.step->delta_z, shared, q);
    FX_FOR(s, S) {
        float sum = 0.0f;
        for (int e = 0; e < E; ++e) sum += q[e * S + s];
        a.values[row * S + s] = sum;
    }
}
