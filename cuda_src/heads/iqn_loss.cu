// iqn_loss: quantile regression of implicit quantile networks (Dabney 2018, eq. 3) and its way back, a row a block.
//
//   Z_b(tau) = w_a . (psi(s) * phi(tau)) + bias_a             of the action taken in branch b
//   y_b(tau') = R + gamma^m Z-_b(s', a*_b, tau')              of the target network at C51's greedy action
//   loss = w_row scale_b sum_b sum_i 1/N sum_j |tau_i - 1[d < 0]| L_kappa(d)/kappa,   d = y_b(tau'_j) - Z_b(tau_i)
//
// With u_b = psi * w_a a level costs one dot product: Z = u_b . phi. Back: dphi_i = sum_b dZ_b,i u_b; with
// c_b = sum_i dZ_b,i phi_i the head's column gets psi * c_b, and psi gets sum_b w_a * c_b.
//
// Launch: grid (B), any block; dynamic shared memory K Hp + 4 K N floats. Flops 8 K N Hp a row; bytes 12 N Hp and 4 (K + 3) Hp.
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

// d where phi > 0: the derivative of ReLU as linear_backward has it, where a NaN lets the gradient through.
FX_DEVICE fx::lanes through_relu(fx::lanes d, fx::lanes phi) {
#ifdef FX_GPU
    return fx::map_lanes([](float x, float p) { return p <= 0.0f ? 0.0f : x; }, d, phi);
#else
    return phi <= 0.0f ? fx::splat(0.0f) : d;
#endif
}

}  // namespace

FX_KERNEL_ANYBLOCK(iqn_loss) {
    using namespace fx;
    FX_DYNAMIC_SHARED(float, shared);
    const int K = a.K, N = a.N, Hp = a.Hp, Sp = a.Sp, V = Hp / LANES, row = (int)blockIdx.x, action = a.action[row];
    const uint64_t sizes = a.branch_sizes;
    float *u = shared;  // (K, Hp) psi- * w-, then psi * w, then c
    float *y = u + K * Hp, *z = y + K * N, *dz = z + K * N,
          *cost = dz + K * N;  // (K, N)
    const float *x = a.x + (int64_t)row * Hp, *x_next = a.x_target + (int64_t)row * Hp;
    const float *phi = a.embedded + (int64_t)row * N * Hp, *phi_next = a.embedded_next + (int64_t)row * N * Hp;
    const float *tau = a.tau + (int64_t)row * N;
    const float ret = a.ret[row], discount = a.discount[row], priority = a.priority[row];
    const float weight =
        priority > 0.0f ? powf(__uint_as_float(a.step->min_priority) / priority, a.step->beta_per) : 0.0f;
    auto taken = [&](int b) { return branch_first(sizes, b) + branch_action(sizes, K, action, b); };
    auto greedy = [&](int b) { return branch_first(sizes, b) + a.next_action[row * K + b]; };
    auto dot = [&](const float *p, const float *q) { return lane_sum(Hp, [&](int h) { return p[h] * q[h]; }); };

    FX_ROWS(b, K) {
        const float *w = a.w_target + greedy(b);
        FX_LANES(h, Hp) u[b * Hp + h] = x_next[h] * w[(int64_t)h * Sp];
    }
    __syncthreads();
    FX_ROWS(t, K * N) {
        const int b = t / N;
        const float next = dot(u + b * Hp, phi_next + (int64_t)(t % N) * Hp);
        FX_LANE_0 y[t] = ret + discount * (next + a.bias_target[greedy(b)]);
    }
    __syncthreads();
    FX_ROWS(b, K) {
        const float *w = a.w + taken(b);
        FX_LANES(h, Hp) u[b * Hp + h] = x[h] * w[(int64_t)h * Sp];
    }
    __syncthreads();
    FX_ROWS(t, K * N) {
        const int b = t / N;
        const float now = dot(u + b * Hp, phi + (int64_t)(t % N) * Hp);
        FX_LANE_0 z[t] = now + a.bias[taken(b)];
    }
    __syncthreads();

    const float kappa = a.kappa, scale = weight * a.branch_scale / ((float)N * kappa), mean = 1.0f / (float)a.B;
    FX_ROWS(t, K * N) {
        const float *next = y + t / N * N;
        const float level = tau[t % N], now = z[t];
        auto clipped = [&](float d) { return d < -kappa ? -kappa : d > kappa ? kappa : d; };  // a NaN stays
        auto side = [&](float d) { return d < 0.0f ? 1.0f - level : level; };
        const float slope = lane_sum(N, [&](int j) {
            const float d = next[j] - now;
            return side(d) * clipped(d);
        });
        const float huber = lane_sum(N, [&](int j) {  // c (d - c/2): d^2/2 within kappa, kappa (|d| - kappa/2) beyond
            const float d = next[j] - now, c = clipped(d);
            return side(d) * c * (d - 0.5f * c);
        });
        FX_LANE_0 dz[t] = -mean * scale * slope, cost[t] = scale * huber;
    }
    __syncthreads();
    const float loss = block_sum(K * N, [&](int t) { return cost[t]; });
    __syncthreads();

    float *out = a.rows + (int64_t)row * (IQN_COLUMNS + K);
    FX_ROWS(b, K) {
        const float sum = lane_sum(N, [&](int i) { return dz[b * N + i]; });
        FX_LANE_0 out[IQN_COLUMNS + b] = sum, a.column[row * K + b] = taken(b);
        const float range = quartile_range(z + b * N, N);
        FX_LANE_0 y[b * N] = range;  // y is spent
    }
    FX_FOR(t, N * V) {
        const int i = t / V, at = t % V * LANES;
        lanes d = splat(0.0f);
        for (int b = 0; b < K; ++b) d = fma(splat(dz[b * N + i]), load_lanes(u + b * Hp + at), d);
        const int64_t to = (int64_t)i * Hp + at;
        store_lanes(a.dembedded + (int64_t)row * N * Hp + to, through_relu(d, load_lanes(phi + to)));
    }
    __syncthreads();
    FX_FOR(t, K * V) {
        const int b = t / V, at = t % V * LANES;
        lanes c = splat(0.0f);
        for (int i = 0; i < N; ++i) c = fma(splat(dz[b * N + i]), load_lanes(phi + (int64_t)i * Hp + at), c);
        store_lanes(a.dhead + ((int64_t)row * K + b) * Hp + at, load_lanes(x + at) * c);
        store_lanes(u + b * Hp + at, c);
    }
    __syncthreads();
    const int32_t *column = a.column + row * K;
    auto by_trunk = [&](int h) {
        float sum = 0.0f;
        for (int b = 0; b < K; ++b) sum += a.w[(int64_t)h * Sp + column[b]] * u[b * Hp + h];
        return sum;
    };
    const float squares = block_sum(Hp, [&](int h) {
        const float d = by_trunk(h);
        a.dx[(int64_t)row * Hp + h] = d;
        return d * d;
    });
    FX_FOR(only, 1) {
        float spread = 0.0f;
        for (int b = 0; b < K; ++b) spread += y[b * N];
        out[IQN_LOSS] = loss;
        out[IQN_NORM2] = squares;
        out[IQN_SPREAD] = spread / (float)K;
    }
}
