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

    constexpr int TOGETHER = 4;
    FX_ROWS(t, 2 * N) {  // a level, all its branches
        const bool next = t >= N;
        const int i = next ? t - N : t;
        const float *p = (next ? phi_next : phi) + (int64_t)i * Hp, *from = next ? c : u;
        for (int b = 0; b < K; b += TOGETHER) {
            const int count = min(TOGETHER, K - b);
            float dot[TOGETHER];
            lane_sums(Hp, count, dot, [&](int h, int k) { return from[min(b + k, K - 1) * Hp + h] * p[h]; });
            FX_LANE_0 {
                FX_UNROLL
                for (int k = 0; k < TOGETHER; ++k) {
                    if (k >= count) break;
                    if (next) y[(b + k) * N + i] = ret + discount * (dot[k] + bias[K + b + k]);
                    else z[(b + k) * N + i] = dot[k] + bias[b + k];
                }
            }
        }
    }
    __syncthreads();

    const float kappa = a.kappa, scale = *weight * a.branch_scale / ((float)N * kappa), mean = 1.0f / (float)a.B;
    const int groups = ceil_div(N, TOGETHER);
    FX_ROWS(r, K * groups) {  // levels of one branch against all its targets
        const int b = r / groups, i = (r - b * groups) * TOGETHER, count = min(TOGETHER, N - i);
        const float *next = y + b * N;
        float level[TOGETHER], now[TOGETHER], sums[2 * TOGETHER];
        FX_UNROLL
        for (int k = 0; k < TOGETHER; ++k) level[k] = tau[min(i + k, N - 1)], now[k] = z[b * N + min(i + k, N - 1)];
        lane_sums(N, 2 * count, sums, [&](int j, int k) {
            const float d = next[j] - now[k / 2], clipped = d < -kappa ? -kappa : d > kappa ? kappa : d;  // a NaN stays
            const float side = d < 0.0f ? 1.0f - level[k / 2] : level[k / 2];
            // d^2/2 within kappa, kappa (|d| - kappa/2) beyond; its slope
            return k % 2 ? side * clipped * (d - 0.5f * clipped) : side * clipped;
        });
        FX_LANE_0 {
            FX_UNROLL
            for (int k = 0; k < TOGETHER; ++k) {
                if (k >= count) break;
                dz[b * N + i + k] = -mean * scale * sums[2 * k], cost[b * N + i + k] = scale * sums[2 * k + 1];
            }
        }
    }
    __syncthreads();

    float *out = a.rows + (int64_t)row * (IQN_COLUMNS + K);
    FX_FOR(t, (N + K) * V) {
        const int i = t / V, at = t % V * LANES;
        if (i < N) {
            lanes d = splat(0.0f);
            for (int b = 0; b < K; ++b) d = fma(splat(dz[b * N + i]), load_lanes(u + b * Hp + at), d);
            const int64_t to = (int64_t)i * Hp + at;
            store_lanes(a.dembedded + (int64_t)row * N * Hp + to, relu_gradient(d, load_lanes(phi + to)));
        } else {
            const int b = i - N;
            lanes sum = splat(0.0f);
#pragma unroll 8
            for (int k = 0; k < N; ++k) sum = fma(splat(dz[b * N + k]), load_lanes(phi + (int64_t)k * Hp + at), sum);
            store_lanes(a.dhead + ((int64_t)row * K + b) * Hp + at, load_lanes(x + at) * sum);
            store_lanes(c + b * Hp + at, sum);
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
