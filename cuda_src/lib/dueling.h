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

// V - mean_a A of one branch of n actions, (N,), by one row of FX_ROWS.
FX_DEVICE void branch_base(const float *value, const float *advantage, int n, int N, float *out) {
    const float inverse = 1.0f / (float)n;
    FX_LANES(j, N) out[j] = 0.0f;
    for (int i = 0; i < n; ++i) FX_LANES(j, N) out[j] += advantage[i * N + j];
    FX_LANES(j, N) out[j] = value[j] - out[j] * inverse;
}

// base, shared (K, N) floats: V - mean_a A of each branch. Called by every thread of a block, a barrier to follow. `row`: N value
// atoms, then S * N advantage atoms.
FX_DEVICE void dueling_base(const float *row, uint64_t sizes, int K, int N, float *base) {
    FX_ROWS(b, K) branch_base(row, row + (1 + branch_first(sizes, b)) * N, branch_size(sizes, b), N, base + b * N);
}

// Called by every thread of a block, for FX_KERNEL_ANYBLOCK kernels. `value`: N atoms. `advantage`: (E, S, N), E heads on that
// value. `base`: shared, (E, K, N) floats of workspace. `q`: shared, (E, S) floats, complete for all threads on return.
FX_DEVICE void expected_returns(const float *value, const float *advantage, int E, uint64_t sizes, int K, int S, int N,
                             float v_min, float delta_z, float *base, float *q) {
    FX_ROWS(r, E * K) {
        const int e = r / K, b = r - e * K;
        branch_base(value, advantage + (e * S + branch_first(sizes, b)) * N, branch_size(sizes, b), N, base + r * N);
    }
    __syncthreads();
    FX_ROWS(r, E * S) {
        const int e = r / S, s = r - e * S;
        const float *v = base + (e * K + branch_of(sizes, s)) * N, *x = advantage + r * N;
        const float expected =
            lane_softmax(
                N, [&](int j) { return v[j] + x[j]; }, [&](int j) { return v_min + delta_z * (float)j; })
                .expectation;
        FX_LANE_0 q[r] = expected;
    }
    __syncthreads();
}

// The same of one head; `row`: N value atoms, then S * N advantage atoms.
FX_DEVICE void expected_returns(const float *row, uint64_t sizes, int K, int S, int N, float v_min, float delta_z,
                             float *base, float *q) {
    expected_returns(row, row + N, 1, sizes, K, S, N, v_min, delta_z, base, q);
}

}  // namespace fx
