// iqn_loss: quantile regression of implicit quantile networks (Dabney 2018, eq. 3) and its way back, a row a block.
//
//   Z_b(tau) = w_a . (psi(s) * phi(tau)) + bias_a             of the action taken in branch b
//   y_b(tau') = R + gamma^m Z-_b(s', a*_b, tau')              of the target network at C51's greedy action
//   loss = w_row scale_b sum_b sum_i 1/N sum_j |tau_i - 1[d < 0]| L_kappa(d)/kappa,   d = y_b(tau'_j) - Z_b(tau_i)
//
// With u_b = psi * w_a a level costs one dot product: Z = u_b . phi. Back: dphi_i = sum_b dZ_b,i u_b; with
// c_b = sum_i dZ_b,i phi_i the head's column gets psi * c_b, and psi gets sum_b w_a * c_b.
//
// Five phases, four barriers: what a small batch pays for is the way from one to the next.
// Launch: grid (B), any block; dynamic shared memory 2 K Hp + 4 K N + 3 K + 1 floats. Flops 8 K N Hp a row; bytes 12 N Hp and 4 (K + 3) Hp.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/iqn.h"
#include "lib/branches.h"
#include "lib/lanes.h"
#include "lib/rows.h"

namespace {

// Interquartile range of n values, both quartiles by linear interpolation between order statistics, as numpy.quantile. The order
// of equal values is that of their places, so each rank is held once.
FX_DEVICE float quartile_range(const float *z, int n) {
    auto share = [&](int rank, float level) {  // of the value of this rank in the quantile
        const float away = fabsf((float)rank - level * (float)(n - 1));
        return away < 1.0f ? 1.0f - away : 0.0f;
    };
    return fx::lane_sum(n, [&](int i) {
        const float own = z[i];
        int rank = 0;
        for (int j = 0; j < n; ++j) rank += (int)(z[j] < own) | ((int)(z[j] == own) & (int)(j < i));
        return (share(rank, 0.75f) - share(rank, 0.25f)) * own;
    });
}

// sum[k] = dot product of row k of `from`, rows Hp apart, with x; both of so many vectors. A warp each on a GPU.
template <int LEVELS, int M>
FX_DEVICE void level_dots(int vectors, const float *const (&rows)[M], const float *const (&x)[LEVELS],
                       float (&sum)[LEVELS * M]) {
    using namespace fx;
#ifdef FX_GPU
    FX_UNROLL
    for (int k = 0; k < LEVELS * M; ++k) sum[k] = 0.0f;
#pragma unroll 2
    FX_LANES(v, vectors) {
        lanes at[LEVELS];
        FX_UNROLL
        for (int l = 0; l < LEVELS; ++l) at[l] = load_lanes(x[l] + v * LANES);
        FX_UNROLL
        for (int k = 0; k < M; ++k) {
            const float4 w = load_lanes(rows[k] + v * LANES).v;
            FX_UNROLL
            for (int l = 0; l < LEVELS; ++l) {
                float &s = sum[l * M + k];
                s = fmaf(w.x, at[l].v.x, s), s = fmaf(w.y, at[l].v.y, s);
                s = fmaf(w.z, at[l].v.z, s), s = fmaf(w.w, at[l].v.w, s);
            }
        }
    }
    warp_sums(sum);
#else
    for (int l = 0; l < LEVELS; ++l)
        for (int k = 0; k < M; ++k) {
            lanes s = splat(0.0f);
            for (int v = 0; v < vectors; ++v) s = fma(load_lanes(rows[k] + v * LANES), load_lanes(x[l] + v * LANES), s);
            sum[l * M + k] = fx::sum(s);
        }
#endif
}

// Two sums over i < n of f(i, k) by one thread, ascending on a GPU: the lanes of a warp have other sums of their own to make.
template <class F>
FX_DEVICE void thread_sums(int n, float (&sum)[2], F f) {
#ifdef FX_GPU
    sum[0] = sum[1] = 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; ++i) sum[0] += f(i, 0), sum[1] += f(i, 1);
#else
    for (int k = 0; k < 2; ++k) sum[k] = fx::lane_sum(n, [&](int i) { return f(i, k); });
#endif
}

}  // namespace

#ifdef FX_GPU
extern "C" __global__ void __launch_bounds__(1024) iqn_loss(const __grid_constant__ iqn_loss_args a);
#endif

FX_KERNEL_ANYBLOCK(iqn_loss) {
    using namespace fx;
    FX_DYNAMIC_SHARED(float, shared);
    const int K = a.K, N = a.N, Hp = a.Hp, Sp = a.Sp, V = Hp / LANES, row = (int)blockIdx.x;
    float *u = shared;                                   // (K, Hp) psi * w of the taken actions
    float *c = u + K * Hp;                               // (K, Hp) psi- * w- of the greedy ones at s'; then c
    float *z = c + K * Hp, *y = z + K * N;               // (K, N) Z(tau), y(tau')
    float *dz = y + K * N, *cost = dz + K * N;           // (K, N) gradient by Z, loss
    float *bias = cost + K * N, *weight = bias + 2 * K;  // (2, K), (1,)
    int *taken = reinterpret_cast<int *>(weight + 1);    // (K,)
    const float *x = a.x + (int64_t)row * Hp, *x_next = a.x_target + (int64_t)row * Hp;
    const float *phi = a.embedded + (int64_t)row * N * Hp, *phi_next = a.embedded_next + (int64_t)row * N * Hp;
    const float *tau = a.tau + (int64_t)row * N;
    const float ret = a.ret[row], discount = a.discount[row];
    const int action = a.action[row];

    FX_ROWS(r, 2 * K + 1) {  // what both targets start from, and the importance weight (Schaul 2016)
        if (r == 2 * K) {
            const float priority = a.priority[row];
            FX_LANE_0 *weight =
                priority > 0.0f ? powf(__uint_as_float(a.step->min_priority) / priority, a.step->beta_per) : 0.0f;
            continue;
        }
        const bool next = r >= K;
        const int b = next ? r - K : r, first = branch_first(a.branch_sizes, b);
        const int s = first + (next ? a.next_action[row * K + b] : branch_action(a.branch_sizes, K, action, b));
        const float *psi = next ? x_next : x, *w = (next ? a.w_target : a.w) + s;
        FX_LANES(h, Hp) u[r * Hp + h] = psi[h] * w[(int64_t)h * Sp];
        FX_LANE_0 {
            bias[r] = (next ? a.bias_target : a.bias)[s];
            if (!next) taken[b] = s, a.column[row * K + b] = s;
        }
    }
    __syncthreads();

    constexpr int TOGETHER = 4, LEVELS = 2;
    const int pairs = ceil_div(N, LEVELS);
    FX_ROWS(t, 2 * pairs) {  // two levels, all their branches: they share the loads of u
        const bool next = t >= pairs;
        const int i = LEVELS * (next ? t - pairs : t), second = min(i + 1, N - 1);
        const float *p = next ? phi_next : phi, *from = next ? c : u;
        const float *const both[LEVELS] = {p + i * Hp, p + second * Hp};
        for (int b = 0; b < K; b += TOGETHER) {
            const float *rows[TOGETHER];
            FX_UNROLL
            for (int k = 0; k < TOGETHER; ++k) rows[k] = from + min(b + k, K - 1) * Hp;
            float dot[LEVELS * TOGETHER];
            level_dots<LEVELS, TOGETHER>(V, rows, both, dot);
            FX_LANE_0 {
                FX_UNROLL
                for (int k = 0; k < LEVELS * TOGETHER; ++k) {
                    const int branch = b + k % TOGETHER, level = i + k / TOGETHER;
                    if (branch >= K || level >= N) continue;
                    if (next) y[branch * N + level] = ret + discount * (dot[k] + bias[K + branch]);
                    else z[branch * N + level] = dot[k] + bias[branch];
                }
            }
        }
    }
    __syncthreads();

    const float kappa = a.kappa, scale = *weight * a.branch_scale / ((float)N * kappa), mean = 1.0f / (float)a.B;
    FX_FOR(t, K * N) {  // a level of a branch against all its targets
        const int b = t / N;
        const float *next = y + b * N, level = tau[t - b * N], now = z[t];
        float sums[2];
        thread_sums(N, sums, [&](int j, int k) {
            const float d = next[j] - now, clipped = d < -kappa ? -kappa : d > kappa ? kappa : d;  // a NaN stays
            const float side = d < 0.0f ? 1.0f - level : level;
            // d^2/2 within kappa, kappa (|d| - kappa/2) beyond; its slope
            return k ? side * clipped * (d - 0.5f * clipped) : side * clipped;
        });
        dz[t] = -mean * scale * sums[0], cost[t] = scale * sums[1];
    }
    __syncthreads();

    float *out = a.rows + (int64_t)row * (IQN_COLUMNS + K);
    float *dphi = a.dembedded + (int64_t)row * N * Hp;
    FX_ROWS(i, N) {
        FX_LANES(v, V) {
            lanes d = splat(0.0f);
#pragma unroll 4
            for (int b = 0; b < K; ++b) d = fma(splat(dz[b * N + i]), load_lanes(u + b * Hp + v * LANES), d);
            const int to = i * Hp + v * LANES;
            store_lanes(dphi + to, relu_gradient(d, load_lanes(phi + to)));
        }
    }
    for (int b = 0; b < K; b += TOGETHER) {  // a vector of the branches' columns
        const int count = min(TOGETHER, K - b);
        FX_FOR(v, V) {
            lanes sum[TOGETHER];
            FX_UNROLL
            for (int k = 0; k < TOGETHER; ++k) sum[k] = splat(0.0f);
#pragma unroll 4
            for (int i = 0; i < N; ++i) {
                const lanes p = load_lanes(phi + i * Hp + v * LANES);
                FX_UNROLL
                for (int k = 0; k < TOGETHER; ++k) sum[k] = fma(splat(dz[min(b + k, K - 1) * N + i]), p, sum[k]);
            }
            const lanes psi = load_lanes(x + v * LANES);
            FX_UNROLL
            for (int k = 0; k < TOGETHER; ++k) {
                if (k >= count) break;
                const int at = (b + k) * Hp + v * LANES;
                store_lanes(a.dhead + (int64_t)row * K * Hp + at, psi * sum[k]);
                store_lanes(c + at, sum[k]);
            }
        }
    }
    FX_ROWS(b, K + 1) {
        if (b == K) {
            const float loss = lane_sum(K * N, [&](int t) { return cost[t]; });
            FX_LANE_0 out[IQN_LOSS] = loss;
            continue;
        }
        const float sum = lane_sum(N, [&](int i) { return dz[b * N + i]; });
        const float range = quartile_range(z + b * N, N);
        FX_LANE_0 out[IQN_COLUMNS + b] = sum, y[b] = range;  // y is spent
    }
    __syncthreads();

    FX_ROWS(only, 1) {
        const float squares = lane_sum(Hp, [&](int h) {
            float d = 0.0f;
            for (int b = 0; b < K; ++b) d += a.w[(int64_t)h * Sp + taken[b]] * c[b * Hp + h];
            a.dx[(int64_t)row * Hp + h] = d;
            return d * d;
        });
        FX_LANE_0 {
            float spread = 0.0f;
            for (int b = 0; b < K; ++b) spread += y[b];
            out[IQN_NORM2] = squares;
            out[IQN_SPREAD] = spread / (float)K;
        }
    }
}
