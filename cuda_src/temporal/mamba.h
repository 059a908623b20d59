// The Mamba-2 block at the last position of a window (abi/temporal.h): what its way there and its way back both compute.
//
// The recurrence of a head, with A = -exp(a_log) and dt_t = softplus(u_t + dt_bias),
//
//   h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t',   y_t = C_t h_t + d x_t,   h = 0 before the window's first state,
//
// is at the last position a weighted sum over the window (the dual form of Dao & Gu 2024, section 3):
//
//   y_L = sum_t q_t (C_L . B_t) x_t + d x_L,   q_t = dt_t exp(A sum_{k>t} dt_k)
//
// so the state, N x D numbers a head, is never formed: L (N + H D) multiply-adds instead of L H N D.
#pragma once
#include "lib/kernel.h"

namespace fx {

constexpr float NORM_EPS = 1e-5f;  // of the RMS norm, as in the authors' code

FX_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
FX_DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }
FX_DEVICE float silu_gradient(float x) {
    const float s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}
FX_DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Sizes and small parameters of one pass.
struct mamba {
    int L, H, D, N, W, Wp, I, C;
    int Cp;
    const float *conv, *bias, *dt_bias, *a_log, *d, *norm;

    template <class A>
    FX_DEVICE mamba(const A &a, const float *small)
        : L(a.L),
          H(a.H),
          D(a.D),
          N(a.N),
          W(a.W),
          Wp(a.Wp),
          I(a.H * a.D),
          C(a.H * a.D + 2 * a.N),
          Cp(a.Cp),
          conv(small),
          bias(small + a.bias_at),
          dt_bias(small + a.dt_at),
          a_log(small + a.a_at),
          d(small + a.d_at),
          norm(small + a.norm_at) {}

    FX_DEVICE float decay(int h) const { return -expf(a_log[h]); }

    // Channel c of the causal convolution at position t, before its activation. What lies before the window, or before its
    // first state, is zero: in_proj has no bias.
    FX_DEVICE float convolved(const float *proj, int t, int c) const {
        float s = bias[c];
        for (int j = max(0, W - 1 - t); j < W; ++j) s += conv[j * Cp + c] * proj[(t - W + 1 + j) * Wp + c];
        return s;
    }
    FX_DEVICE float channel(const float *proj, int t, int c) const { return silu(convolved(proj, t, c)); }

    // dt of a head at a position, and what is added to dt_bias for it.
    FX_DEVICE float raw_step(const float *proj, int t, int h) const {
        return proj[t * Wp + C + h] + dt_bias[h];
    }
};

}  // namespace fx
