// Heads that learn from the n-step return R of a row beside the value: they read the trunk's output as a constant.
//
//   selectivity: l = x w + b, y = 1[R > 0];  loss = log(1 + e^l) - y l,  dloss/dl = (sigmoid(l) - y) / B
//   risk: the level-quantile q of R by the pinball loss max(level u, (level - 1) u), u = R - q (Koenker & Bassett 1978), and
//   the expected shortfall c by squared error to q + min(R - q, 0) / level, q a constant there (Rockafellar & Uryasev 2000)
//
// Launch: grid (B,), a row a block, any block.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/aux.h"

namespace {

FX_DEVICE float output(const float *x, const float *w, const float *bias, int Hp, int column) {
    return fx::block_sum(Hp, [&](int k) { return x[k] * w[k * HEAD_WIDTH + column]; }) + bias[column];
}

}  // namespace

FX_KERNEL_ANYBLOCK(selectivity) {
    const int row = (int)blockIdx.x;
    const float logit = output(a.x + (int64_t)row * a.Hp, a.w, a.bias, a.Hp, 0);
    FX_FOR(only, 1) {
        const float label = a.ret[row] > 0.0f ? 1.0f : 0.0f;
        const float e = expf(-fabsf(logit)), p = (logit >= 0.0f ? 1.0f : e) / (1.0f + e);
        float *out = a.rows + row * SELECTIVITY_COLUMNS;
        out[0] = (logit > 0.0f ? logit : 0.0f) + log1pf(e) - label * logit;  // a NaN logit makes it NaN
        out[1] = p;
        out[2] = label;
        out[3] = (p - label) / (float)a.B;
    }
}

FX_KERNEL_ANYBLOCK(risk) {
    const int row = (int)blockIdx.x;
    const float *x = a.x + (int64_t)row * a.Hp;
    const float quantile = output(x, a.w, a.bias, a.Hp, 0), shortfall = output(x, a.w, a.bias, a.Hp, 1);
    FX_FOR(only, 1) {
        const float u = a.ret[row] - quantile, level = a.level, below = u < 0.0f ? 1.0f : 0.0f;
        const float error = shortfall - (quantile + (u < 0.0f ? u : 0.0f) / level);
        float *out = a.rows + row * RISK_COLUMNS;
        out[0] = u * (level - below);
        out[1] = error * error;
        out[2] = quantile;
        out[3] = shortfall;
        out[4] = below;
        out[5] = (below - level) / (float)a.B;
        out[6] = 2.0f * error / (float)a.B;
    }
}
