// ensemble_values: the action at s' that an ensemble chooses, a row a block (docs/step/ensemble.md):
//
//   a*_b = argmax_a sum_h Q_h,b,a      the first of the largest; one that is NaN comes before all
//
// ddqn makes its own choice, by its own head's Q and `values`: 0 for a*, -infinity for the rest, so that both are one. Nobody else
// has to wait for ddqn to know a*.
//
// Launch: grid (R,), block a multiple of 32 (a warp a branch of a head: H K of them); dynamic shared memory H K N + H S floats, or
// the row's logits, Np + Mp floats, and H S. Reads (1 + S) N + E S N floats a row, writes S + K.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "abi/ensemble.h"
#include "lib/branches.h"
#include "lib/dueling.h"
#ifdef FX_GPU
#include "heads/actions_gpu.h"
#endif

namespace {

// a* of branch b from the expected returns (H, S), by one row of FX_ROWS.
FX_DEVICE void choose(const ensemble_values_args &a, const float *q, int b) {
    const int row = (int)blockIdx.x, n = fx::branch_size(a.branch_sizes, b),
              first = fx::branch_first(a.branch_sizes, b);
    const int best = fx::lane_argmax(n, [&](int i) {
                         float sum = 0.0f;
                         for (int h = 0; h <= a.E; ++h) sum += q[h * a.S + first + i];
                         return sum;
                     }).i;
    float *values = a.values + (int64_t)row * a.S + first;
    FX_LANES(i, n) values[i] = i == best ? 0.0f : -INFINITY;
    FX_LANE_0 a.next_action[row * a.K + b] = best;
}

#ifdef FX_GPU
template <int A, bool STAGED>
FX_DEVICE void values_row(const ensemble_values_args &a, float *shared) {
    const int K = a.K, S = a.S, N = a.N, H = a.E + 1;
    const float *value = a.logits + (int64_t)blockIdx.x * a.Np, *more = a.more + (int64_t)blockIdx.x * a.Mp;
    const fx::atom_values z{a.step->v_min, a.step->delta_z};
    const fx::lane_places<A> place(N);
    float *q = shared;
    if (STAGED) {
        fx::stage_floats(shared, value, a.Np), fx::stage_floats(shared + a.Np, more, a.Mp);
        value = shared, more = shared + a.Np, q = shared + a.Np + a.Mp;
        fx::await_staged();
    }
    for (int r = fx::warp_id(); r < H * K; r += fx::warps()) {
        const int h = r / K, b = r - h * K, n = fx::branch_size(a.branch_sizes, b),
                  first = fx::branch_first(a.branch_sizes, b);
        const float *logit = h == 0 ? value + (1 + first) * N : more + ((h - 1) * S + first) * N;
        const fx::lane_atoms<A> base = fx::lane_base(place, value, logit, n, N);
        fx::action_softmaxes<A, false>(place, base, logit, nullptr, q + h * S + first, n, N, z);
    }
    __syncthreads();
    for (int b = fx::warp_id(); b < K; b += fx::warps()) choose(a, q, b);
}
#else
FX_DEVICE void values_row_host(const ensemble_values_args &a, float *shared) {
    const int K = a.K, S = a.S, N = a.N;
    const float *value = a.logits + (int64_t)blockIdx.x * a.Np, *more = a.more + (int64_t)blockIdx.x * a.Mp;
    const float v_min = a.step->v_min, delta_z = a.step->delta_z;
    float *q = shared + (a.E + 1) * K * N;  // (H, S)
    fx::expected_returns(value, a.branch_sizes, K, S, N, v_min, delta_z, shared, q);
    fx::expected_returns(value, more, a.E, a.branch_sizes, K, S, N, v_min, delta_z, shared, q + S);
    for (int b = 0; b < K; ++b) choose(a, q, b);
}
#endif

}  // namespace

#ifdef FX_GPU
extern "C" __global__ void __launch_bounds__(ENSEMBLE_THREADS)
    ensemble_values(const __grid_constant__ ensemble_values_args a);
extern "C" __global__ void __launch_bounds__(ENSEMBLE_WIDE_THREADS, 1)
    ensemble_values_wide(const __grid_constant__ ensemble_values_wide_args a);
#endif

FX_KERNEL_ANYBLOCK(ensemble_values) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    values_row<HEAD_NARROW / 32, true>(a, shared);
#else
    values_row_host(a, shared);
#endif
}

// More than HEAD_NARROW atoms, or logits that leave no room in shared memory: see loss/c51_loss.cu.
FX_KERNEL_ANYBLOCK(ensemble_values_wide) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    values_row<fx::MAX_ATOMS / 32, false>(a, shared);
#else
    values_row_host(a, shared);
#endif
}
