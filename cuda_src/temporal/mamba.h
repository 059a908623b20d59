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
//
// A block keeps the activations of `tile` positions in shared memory, made once and all at once: nothing but the sums of steps
// behind (or before) a position has an order, and those are scans of L numbers a head.
#pragma once
#include "lib/copy_async.h"
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"
#include "lib/thread_sum.h"

namespace fx {

constexpr float NORM_EPS = 1e-5f;  // of the RMS norm, as in the authors' code
constexpr int USUAL_CONV = 4;      // width of the convolution that has code of its own, its taps in registers

// __fdividef: 2 ulp; a denominator beyond 2^126, where it gives 0, is one of a sigmoid that is 0 in f32 too.
FX_DEVICE float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + expf(-x));
}
FX_DEVICE float silu(float x) { return x * sigmoid(x); }
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

    // act = silu(convolution) of the first `channels` channels at positions [from, to), row t - from of (to - from, ld), and where
    // wanted slope = silu'. PADDED: W - 1 rows of zeros stand in front of proj.
    template <bool PADDED>
    FX_DEVICE void activate(const float *proj, int from, int to, int channels, float *act, float *slope, int ld) const {
#ifdef FX_GPU
        if (PADDED && W == USUAL_CONV) activate_columns<USUAL_CONV>(proj, from, to, channels, act, slope, ld);
        else activate_columns<0>(proj, from, to, channels, act, slope, ld);
#else
        for (int t = from; t < to; ++t) {
            float *__restrict x = act + (t - from) * ld;
            for (int c = 0; c < channels; ++c) x[c] = bias[c];
            for (int j = max(0, W - 1 - t); j < W; ++j) {
                const float *w = conv + j * Cp, *u = proj + (t - W + 1 + j) * Wp;
                for (int c = 0; c < channels; ++c) x[c] += w[c] * u[c];
            }
            if (slope) {
                float *__restrict d = slope + (t - from) * ld;
                for (int c = 0; c < channels; ++c) {
                    const float s = sigmoid(x[c]);
                    d[c] = s * (1.0f + x[c] * (1.0f - s));
                    x[c] *= s;
                }
            } else {
                for (int c = 0; c < channels; ++c) x[c] = silu(x[c]);
            }
        }
#endif
    }

    // The way back through the convolution: to[t] = sum_j w_{W-1-j} d[t + j], t in [begin, end), t + j <= last; d's rows are those of
    // positions from `from` on, ld apart.
    FX_DEVICE void to_input(const float *d, int from, int begin, int end, int ld, float *to) const {
#ifdef FX_GPU
        if (W == USUAL_CONV) to_input_columns<USUAL_CONV>(d, from, begin, end, ld, to);
        else to_input_columns<0>(d, from, begin, end, ld, to);
#else
        for (int t = begin; t < end; ++t) {
            float *__restrict x = to + t * Wp;
            for (int i = 0; i < C; ++i) x[i] = 0.0f;
            for (int j = 0; j < W && t + j < L; ++j) {
                const float *w = conv + (W - 1 - j) * Cp, *row = d + (t + j - from) * ld;
                for (int i = 0; i < C; ++i) x[i] += w[i] * row[i];
            }
        }
#endif
    }

#ifdef FX_GPU
    template <int TAPS>  // 0: W, and the rows in front are not there
    FX_DEVICE void activate_columns(const float *proj, int from, int to, int channels, float *act, float *slope,
                                 int ld) const {
        FX_LANES(c, channels) {
            float w[TAPS > 0 ? TAPS : 1];
            const float b = bias[c];
#pragma unroll
            for (int j = 0; j < TAPS; ++j) w[j] = conv[j * Cp + c];
#pragma unroll 1
            FX_ROWS(i, to - from) {
                float s = b;
                if constexpr (TAPS > 0) {
                    const float *u = proj + (from + i - TAPS + 1) * Wp + c;
#pragma unroll
                    for (int j = 0; j < TAPS; ++j) s = fmaf(w[j], u[j * Wp], s);
                } else {
                    s = convolved(proj, from + i, c);
                }
                const float g = sigmoid(s);
                act[i * ld + c] = s * g;
                if (slope) slope[i * ld + c] = g * (1.0f + s * (1.0f - g));
            }
        }
    }

    template <int TAPS>  // 0: W
    FX_DEVICE void to_input_columns(const float *d, int from, int begin, int end, int ld, float *to) const {
        FX_LANES(i, C) {
            float w[TAPS > 0 ? TAPS : 1];
#pragma unroll
            for (int j = 0; j < TAPS; ++j) w[j] = conv[(TAPS - 1 - j) * Cp + i];
#pragma unroll 1
            FX_ROWS(k, end - begin) {
                const int t = begin + k, held = L - t;
                const float *row = d + (t - from) * ld + i;
                float s = 0.0f;
                if constexpr (TAPS > 0) {
#pragma unroll
                    for (int j = 0; j < TAPS; ++j)
                        if (j < held) s = fmaf(w[j], row[j * ld], s);
                } else {
                    for (int j = 0; j < W && j < held; ++j) s += conv[(W - 1 - j) * Cp + i] * row[j * ld];
                }
                to[t * Wp + i] = s;
            }
        }
    }
#endif
};

}  // namespace fx
