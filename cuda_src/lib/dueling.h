// From a row of head outputs to expected returns: dueling combination (Wang 2016), per branch (Tavakoli 2018), and the
// expectation of the categorical distribution (C51, Bellemare 2017).
//
//   Q_b,a = sum_j z_j softmax_j(V_j + A_b,a,j - mean_a A_b,a,j)
#pragma once
#include "lib/branches.h"
#include "lib/kernel.h"
#include "lib/rows.h"

namespace fx {

constexpr int MAX_ATOMS = 256, MAX_ACTIONS = MAX_BRANCHES * 255;

// base, shared (K, N) floats: V - mean_a A of each branch. Called by every thread of a block, a barrier to follow. `row`: N value
// atoms, then S * N advantage atoms.
FX_DEVICE void dueling_base(const float *row, uint64_t sizes, int K, int N, float *base) {
    FX_ROWS(b, K) {
        const int n = branch_size(sizes, b);
        const float *advantage = row + (1 + branch_first(sizes, b)) * N;
        float *out = base + b * N;
        FX_LANES(j, N) out[j] = 0.0f;
        for (int i = 0; i < n; ++i) FX_LANES(j, N) out[j] += advantage[i * N + j];
        FX_LANES(j, N) out[j] = row[j] - out[j] * (1.0f / (float)n);
    }
}

// Called by every thread of a block, for FX_KERNEL_ANYBLOCK kernels. `row`: N value atoms, then S * N advantage atoms. `base`:
// shared, (K, N) floats of workspace. `q`: shared, (S,) floats, complete for all threads on return.
FX_DEVICE void expected_returns(const float *row, uint64_t sizes, int K, int S, int N, float v_min, float delta_z,
                             float *base, float *q) {
    dueling_base(row, sizes, K, N, base);
    __syncthreads();
    FX_ROWS(s, S) {
        const float *v = base + branch_of(sizes, s) * N, *x = row + (1 + s) * N;
        const float expected =
            lane_softmax(
                N, [&](int j) { return v[j] + x[j]; }, [&](int j) { return v_min + delta_z * (float)j; })
                .expectation;
        FX_LANE_0 q[s] = expected;
    }
    __syncthreads();
}

}  // namespace fx
