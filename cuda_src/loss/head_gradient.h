// From the gradient of the taken actions' logits to the gradient of the head's output.
#pragma once
#include "lib/branches.h"
#include "lib/rows.h"

namespace fx {

// The dueling combination is logits_b,a = V + A_b,a - mean_a A_b,a (Wang 2016; branches after Tavakoli 2018), so V's gradient
// is the sum over branches and actions, and A's is d - mean_a d. Only the taken action of each branch has a gradient d(b, j).
// Writes one row of Np floats: value, advantages, zeros.
template <class D>
FX_DEVICE void write_head_gradient(float *__restrict__ out, int K, int S, int N, int Np, uint64_t sizes, int action, D d) {
    FX_ROWS(r, 1 + S) {
        float *y = out + r * N;
        if (r == 0) {
            FX_LANES(j, N) {
                float sum = 0.0f;
                for (int b = 0; b < K; ++b) sum += d(b, j);
                y[j] = sum;
            }
        } else {
            int b = branch_of(sizes, r - 1);
            int taken = branch_first(sizes, b) + branch_action(sizes, K, action, b);
            float factor = (r - 1 == taken ? 1.0f : 0.0f) - 1.0f / (float)branch_size(sizes, b);
            FX_LANES(j, N) y[j] = factor * d(b, j);
        }
    }
    FX_FOR(j, Np - (1 + S) * N) out[(1 + S) * N + j] = 0.0f;
}

// Factors of the gradient budget G from the squared norms of the two parts, each already weighted by its share of the
// blend: the cross-entropy part is bounded by 0.7 G, the expected-value part by G. G = 0: off.
struct budget_scales {
    float ce, mse;
};
FX_DEVICE budget_scales gradient_budget(float budget, float ce_norm2, float mse_norm2) {
    if (!(budget > 0.0f)) return {1.0f, 1.0f};
    float ce = sqrtf(ce_norm2), mse = sqrtf(mse_norm2);
    return {ce > 0.7f * budget ? 0.7f * budget / ce : 1.0f, mse > budget ? budget / mse : 1.0f};
}

}  // namespace fx
