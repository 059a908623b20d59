// Bounds the largest singular value of weight matrices by a projection: one power iteration (Miyato et al. 2018,
// algorithm 1), then W <- W / max(1, sigma/sigma_max). Three launches for all matrices together:
//
//   spectral_rows      u = W v                    grid (sum ceil(Kp/rows)); a warp a row
//   spectral_columns   s = W^T u / |u|            grid (sum Np/16); 16 columns a block, rows in PARTS runs, parts ascending
//   spectral_project   sigma = |s|, v = s/|s|     grid (sum ceil(Kp*Np/per_block) + 1); the last block writes the statistics
//
// sigma = |W^T u| for a unit vector u: never above the largest singular value but for rounding, and it comes close to it
// as the iterations go on, from below. Lengths are added in f64. W is read twice, and once more and written where it is
// scaled: 8 to 16 bytes and 4 flops a weight.
//
// Nothing is hidden: a sigma that is not finite scales nothing (inf/inf would spread NaN, 0 would mask it), is
// the largest of the statistics, and leaves v alone. Nor does an iteration get lost: where s is 0 (a zero matrix) v stays, and
// where W v is 0 though W may not be (v in the null space, after a column was zeroed) a vector of signs stands in for u.
#include "lib/kernel.h"
#include "lib/lanes.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"
#include "lib/guard.h"

#include "abi/spectral.h"

namespace {

constexpr int VECTORS = SPECTRAL_COLUMNS / fx::LANES;
#ifdef FX_GPU
constexpr int PARTS = 64;
#else
constexpr int PARTS = 1;
#endif

// The matrix that a block works for: the last whose first block is not beyond it.
template <class First>
FX_DEVICE int owner(const spectral_matrix *matrices, int M, First first) {
    int i = 0;
    while (i + 1 < M && first(matrices[i + 1]) <= (int)blockIdx.x) ++i;
    return i;
}

FX_DEVICE float length(const float *x, int n) {
    return (float)::sqrt(fx::block_sum_f64(n, [&](int i) { return (double)x[i] * (double)x[i]; }));
}

// +1 or -1 by a hash of the row (Knuth's multiplicative).
FX_DEVICE float sign_of(int k) {
    return ((uint32_t)k * 2654435761u) >> 31 ? 1.0f : -1.0f;
}

FX_DEVICE bool above(float sigma, float bound) { return fx::finite(sigma) && sigma > bound; }

}  // namespace

FX_KERNEL_ANYBLOCK(spectral_rows) {
    using namespace fx;
    const spectral_matrix m = a.matrices[owner(a.matrices, a.M, [](const spectral_matrix &x) { return x.row_block; })];
    const int first = ((int)blockIdx.x - m.row_block) * a.rows;
    const float *w = a.theta + m.offset + (size_t)first * m.Np, *v = a.v + m.v_at;
    FX_ROWS(r, min(a.rows, m.Kp - first)) {
        const float dot = lane_sum(m.Np / LANES, [&](int q) {
            return sum(load_lanes(w + (size_t)r * m.Np + q * LANES) * load_lanes(v + q * LANES));
        });
        FX_LANE_0 a.u[m.u_at + first + r] = dot;
    }
}

FX_KERNEL_ANYBLOCK(spectral_columns) {
    using namespace fx;
    alignas(16) __shared__ float part[PARTS * SPECTRAL_COLUMNS];
    const spectral_matrix m =
        a.matrices[owner(a.matrices, a.M, [](const spectral_matrix &x) { return x.column_block; })];
    const int c = ((int)blockIdx.x - m.column_block) * SPECTRAL_COLUMNS;
    const float *w = a.theta + m.offset + c, *u = a.u + m.u_at;
    const float norm = length(u, m.Kp);
    const bool none = norm < 1e-30f;  // NaN is not none
    const float scale = none ? 1.0f / sqrtf((float)m.K) : 1.0f / norm;
    FX_FOR(i, PARTS * VECTORS) {
        const int q = i % VECTORS, p = i / VECTORS;
        lanes acc = splat(0.0f);
        for (int k = p; k < m.K; k += PARTS)
            acc = fma(splat((none ? sign_of(k) : u[k]) * scale), load_lanes(w + (size_t)k * m.Np + q * LANES), acc);
        store_lanes(part + i * LANES, acc);
    }
    __syncthreads();
    FX_FOR(j, SPECTRAL_COLUMNS) {
        float total = part[j];
        for (int p = 1; p < PARTS; ++p) total += part[p * SPECTRAL_COLUMNS + j];
        a.s[m.v_at + c + j] = total;
    }
}

FX_KERNEL_ANYBLOCK(spectral_project) {
    using namespace fx;
    if (blockIdx.x == gridDim.x - 1) {
        float largest = -INFINITY;
        int projected = 0;
        for (int i = 0; i < a.M; ++i) {
            const float sigma = length(a.s + a.matrices[i].v_at, a.matrices[i].Np);
            largest = op_max()(largest, sigma);
            projected += above(sigma, a.sigma_max);
            FX_FOR(only, 1) a.sigma[i] = sigma;
        }
        FX_FOR(only, 1) {
            *a.largest = largest;
            *a.projected = (float)projected / (float)a.M;
        }
        return;
    }
    const spectral_matrix m =
        a.matrices[owner(a.matrices, a.M, [](const spectral_matrix &x) { return x.weight_block; })];
    const int block = (int)blockIdx.x - m.weight_block;
    const float *s = a.s + m.v_at;
    const float sigma = length(s, m.Np);
    if (block == 0 && finite(sigma) && sigma > 0.0f)
        FX_FOR(i, m.Np) a.v[m.v_at + i] = s[i] / sigma;
    if (!above(sigma, a.sigma_max)) return;
    const lanes scale = splat(a.sigma_max / sigma);
    const int64_t begin = (int64_t)block * a.per_block, left = (int64_t)m.Kp * m.Np - begin;
    float *w = a.theta + m.offset + begin;
    FX_FOR(q, (left < a.per_block ? left : a.per_block) / LANES) {
        store_lanes(w + q * LANES, scale * load_lanes(w + q * LANES));
    }
}
