// Conservative Q-learning (Kumar 2020, the CQL(H) form) on expected returns, a row a block: what an action that is not in
// the data may be worth is pushed down, what was done is pushed up.
//
//   loss_i = weight * sum_b [ logsumexp_a Q_b(s, a) - Q_b(s, a_data) ],   mean over the rows
//   dloss/dlogit_b,a,j = weight/B * (softmax_a(Q_b)_a - 1[a = a_data]) * p_b,a,j (z_j - Q_b,a)
//
// and through the dueling combination to the head's output: V's gradient is the sum over branches and actions, A's is
// d - mean_a d. Every action has a gradient here.
//
// Launch: grid (B,), any block of at most HEAD_THREADS (a warp a branch); dynamic shared memory: children/row_launch.py. S N
// exponentials, on the host twice; reads and writes Np floats a row.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "lib/branches.h"
#include "lib/dueling.h"
#include "lib/rows.h"
#ifdef FX_GPU
#include "heads/actions_gpu.h"
#endif

namespace {

#ifdef FX_GPU
// Branch b by one warp: its loss, and the gradient of its advantages; the sum of d over the actions to shared memory, for V.
template <int A, bool STAGED>
FX_DEVICE void branch_gradient(const cql_gradient_args &a, const float *row, float *q, float *factor, float *total,
                            float *loss, float *squares, int b) {
    using namespace fx;
    const int N = a.N, n = branch_size(a.branch_sizes, b), first = branch_first(a.branch_sizes, b), lane = lane_id();
    const int taken = branch_action(a.branch_sizes, a.K, a.action[blockIdx.x], b);
    const atom_values z{a.step->v_min, a.step->delta_z};
    const lane_places<A> place(N);
    const float *logit = row + (1 + first) * N;
    float *out = a.part + (int64_t)blockIdx.x * a.Np + (1 + first) * N, *p = STAGED ? const_cast<float *>(logit) : out;
    q += first, factor += first;
    action_softmaxes<A, true>(place, lane_base(place, row, logit, n, N), logit, p, q, n, N, z);

    float top = -INFINITY, sum = 0.0f;
    for (int i = lane; i < n; i += 32) top = fmaxf(top, q[i]);
    top = warp_max(top);
    for (int i = lane; i < n; i += 32) sum += factor[i] = exp2_fast((q[i] - top) * LOG2_E);
    sum = warp_sum(sum);
    const float scale = a.weight / (float)a.B, inverse = 1.0f / sum;
    for (int i = lane; i < n; i += 32) factor[i] = scale * (factor[i] * inverse - (i == taken ? 1.0f : 0.0f));
    __syncwarp();
    lane_atoms<A> all;
    const float norm2 = warp_sum(advantage_gradient<A>(p, out, factor, q, nullptr, -1, n, N, z, all));
    if (lane == 0) loss[b] = top + __logf(sum) - q[taken], squares[b] = norm2;
#pragma unroll
    for (int t = 0; t < A; ++t)
        if (lane + 32 * t < N) total[b * N + lane + 32 * t] = all.v[t];
}

template <int A, bool STAGED>
FX_DEVICE void cql_row(const cql_gradient_args &a, float *shared) {
    const int K = a.K, S = a.S, N = a.N;
    const float *row = a.logits + (int64_t)blockIdx.x * a.Np;
    float *part = a.part + (int64_t)blockIdx.x * a.Np;
    if (STAGED) {
        fx::stage_floats(shared, row, a.Np);
        row = shared, shared += a.Np;
        fx::await_staged();
    }
    float *q = shared, *factor = q + S, *total = factor + S, *loss = total + K * N, *squares = loss + K;
    for (int b = fx::warp_id(); b < K; b += fx::warps())
        branch_gradient<A, STAGED>(a, row, q, factor, total, loss, squares, b);
    __syncthreads();
    fx::sum_over_branches(part, total, K, S, N, a.Np);
    if (threadIdx.x == blockDim.x - 1) {
        float sum = 0.0f, norm2 = 0.0f;
        for (int b = 0; b < K; ++b) sum += loss[b], norm2 += squares[b];
        a.rows[blockIdx.x * AUX_COLUMNS + AUX_LOSS] = a.weight * sum;
        a.rows[blockIdx.x * AUX_COLUMNS + AUX_NORM2] = norm2;
    }
}
#else
FX_DEVICE void cql_row_host(const cql_gradient_args &a, float *shared) {
    const int K = a.K, S = a.S, N = a.N;
    const uint64_t sizes = a.branch_sizes;
    float *base = shared;                           // (K, N) V - mean_a A
    float *mean = base + K * N;                     // (K, N) mean_a d
    float *top = mean + K * N, *inverse = top + S;  // (S,) of each softmax: largest logit, 1 / sum
    float *q = inverse + S, *factor = q + S;        // (S,) expected return; dloss/dQ
    float *loss = factor + S;                       // (K,)
    const int row = (int)blockIdx.x, action = a.action[row];
    const float *value = a.logits + (int64_t)row * a.Np;
    const float v_min = a.step->v_min, delta_z = a.step->delta_z, scale = a.weight / (float)a.B;

    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b);
        const float *advantage = value + (1 + fx::branch_first(sizes, b)) * N;
        float *out = base + b * N;
        FX_LANES(j, N) {
            float sum = 0.0f;
            for (int i = 0; i < n; ++i) sum += advantage[i * N + j];
            out[j] = value[j] - sum * (1.0f / (float)n);
        }
    }
    FX_ROWS(s, S) {
        const float *v = base + fx::branch_of(sizes, s) * N, *x = value + (1 + s) * N;
        const fx::softmax_row soft =
            fx::lane_softmax(N, [&](int j) { return v[j] + x[j]; }, [&](int j) { return v_min + delta_z * (float)j; });
        FX_LANE_0 top[s] = soft.top, inverse[s] = 1.0f / soft.sum, q[s] = soft.expectation;
    }
    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b), first = fx::branch_first(sizes, b);
        const int taken = fx::branch_action(sizes, K, action, b);
        const fx::softmax_row soft = fx::lane_softmax(n, [&](int i) { return q[first + i]; }, [](int) { return 0.0f; });
        FX_LANES(i, n) {
            const float probability = expf(q[first + i] - soft.top) / soft.sum;
            factor[first + i] = scale * (probability - (i == taken ? 1.0f : 0.0f));
        }
        FX_LANE_0 loss[b] = soft.top + logf(soft.sum) - q[first + taken];
    }

    auto gradient = [&](int s, int b, int j) {
        const float p = expf(base[b * N + j] + value[(1 + s) * N + j] - top[s]) * inverse[s];
        return factor[s] * p * (v_min + delta_z * (float)j - q[s]);
    };
    FX_ROWS(b, K) {
        const int n = fx::branch_size(sizes, b), first = fx::branch_first(sizes, b);
        FX_LANES(j, N) {
            float sum = 0.0f;
            for (int i = 0; i < n; ++i) sum += gradient(first + i, b, j);
            mean[b * N + j] = sum * (1.0f / (float)n);
        }
    }
    float *out = a.part + (int64_t)row * a.Np;
    FX_ROWS(r, 1 + S) {
        if (r == 0) {
            FX_LANES(j, N) {
                float sum = 0.0f;
                for (int b = 0; b < K; ++b) sum += mean[b * N + j] * (float)fx::branch_size(sizes, b);
                out[j] = sum;
            }
        } else {
            const int b = fx::branch_of(sizes, r - 1);
            FX_LANES(j, N) out[r * N + j] = gradient(r - 1, b, j) - mean[b * N + j];
        }
    }
    FX_FOR(j, a.Np - (1 + S) * N) out[(1 + S) * N + j] = 0.0f;
    const float squares = fx::block_sum(S * N, [&](int i) {
        const float d = gradient(i / N, fx::branch_of(sizes, i / N), i % N);
        return d * d;
    });
    FX_FOR(only, 1) {
        float sum = 0.0f;
        for (int b = 0; b < K; ++b) sum += loss[b];
        a.rows[row * AUX_COLUMNS + AUX_LOSS] = a.weight * sum;
        a.rows[row * AUX_COLUMNS + AUX_NORM2] = squares;
    }
}
#endif

}  // namespace

#ifdef FX_GPU
extern "C" __global__ void __launch_bounds__(HEAD_THREADS) cql_gradient(const __grid_constant__ cql_gradient_args a);
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    cql_gradient_wide(const __grid_constant__ cql_gradient_wide_args a);
#endif

FX_KERNEL_ANYBLOCK(cql_gradient) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    cql_row<HEAD_NARROW / 32, true>(a, shared);
#else
    cql_row_host(a, shared);
#endif
}

// More than HEAD_NARROW atoms, or logits that leave no room in shared memory: see loss/c51_loss.cu.
FX_KERNEL_ANYBLOCK(cql_gradient_wide) {
    FX_DYNAMIC_SHARED(float, shared);
#ifdef FX_GPU
    cql_row<fx::MAX_ATOMS / 32, false>(a, shared);
#else
    cql_row_host(a, shared);
#endif
}
