// attention, attention_backward, attention_metrics: what stands between the products of the attention block (Vaswani et al. 2017), at
// the last position of each window alone: one query a row, H heads, softmax in f32 over the states held.
//
//   attention            grid (R, passes), any block: a row of a pass a block
//   attention_backward   grid (R), any block
//   attention_metrics    grid (1)
//
// Dynamic shared memory, floats: L*H, and on the way back 2*L*H.
// A head's distance penalty is that of ALiBi (Press et al. 2022): slope 2^(-8 (h+1) / H), so that positions are told apart without
// parameters. Flops a row: 4*L*I there, 8*L*I back; bytes: kv once, on the way back dkv too.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"

#include "abi/attention.h"

namespace {

FX_DEVICE float slope(int h, int heads) { return exp2f(-8.0f * (float)(h + 1) / (float)heads); }

}  // namespace

FX_KERNEL_ANYBLOCK(attention) {
    FX_DYNAMIC_SHARED(float, score);  // (L, H)
    const int r = (int)blockIdx.x, pass = (int)blockIdx.y, at = pass * a.R + r, last = a.L - 1, I = a.H * a.D;
    const float *q = a.q + (int64_t)at * a.Ip, *kv = a.kv + (int64_t)at * a.L * a.Kv;
    float *weight = a.weight + (int64_t)at * a.L * a.H;
    const int first = a.L - (pass == 0 ? a.length0 : a.length1)[r];
    const float scale = 1.0f / sqrtf((float)a.D);

    FX_ROWS(i, (a.L - first) * a.H) {
        const int t = first + i / a.H, h = i % a.H;
        const float dot =
            fx::lane_sum(a.D, [&](int p) { return q[h * a.D + p] * kv[(int64_t)t * a.Kv + h * a.D + p]; });
        FX_LANE_0 score[t * a.H + h] = dot * scale - slope(h, a.H) * (float)(last - t);
    }
    __syncthreads();
    FX_ROWS(h, a.H) {
        const float top = fx::lane_max(a.L - first, [&](int i) { return score[(first + i) * a.H + h]; });
        const float sum = fx::lane_sum(a.L - first, [&](int i) { return expf(score[(first + i) * a.H + h] - top); });
        FX_LANES(t, a.L) weight[t * a.H + h] = t < first ? 0.0f : expf(score[t * a.H + h] - top) / sum;
    }
    __syncthreads();
    FX_FOR(i, a.Ip) {
        float o = 0.0f;
        if (i < I)
            for (int t = first; t <= last; ++t) o += weight[t * a.H + i / a.D] * kv[(int64_t)t * a.Kv + I + i];
        a.o[(int64_t)at * a.Ip + i] = o;
    }
    const float *x = pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2);
    FX_FOR(j, a.Sp) a.out[(int64_t)at * a.Sp + j] = x[(int64_t)r * a.Sp + j];
}

FX_KERNEL_ANYBLOCK(attention_backward) {
    FX_DYNAMIC_SHARED(float, by_weight);  // (L, H)
    float *by_score = by_weight + a.L * a.H;
    const int r = (int)blockIdx.x, last = a.L - 1, I = a.H * a.D, first = a.L - a.length[r];
    const float *q = a.q + (int64_t)r * a.Ip, *kv = a.kv + (int64_t)r * a.L * a.Kv, *d_o = a.d_o + (int64_t)r * a.Ip;
    const float *weight = a.weight + (int64_t)r * a.L * a.H;
    const float *x = a.x + (int64_t)r * a.Sp, *out = a.out + (int64_t)r * a.Sp;
    float *dq = a.dq + (int64_t)r * a.Ip, *dkv = a.dkv + (int64_t)r * a.L * a.Kv;
    const float scale = 1.0f / sqrtf((float)a.D);

    FX_ROWS(i, (a.L - first) * a.H) {
        const int t = first + i / a.H, h = i % a.H;
        const float dot =
            fx::lane_sum(a.D, [&](int p) { return d_o[h * a.D + p] * kv[(int64_t)t * a.Kv + I + h * a.D + p]; });
        FX_LANE_0 by_weight[t * a.H + h] = dot;
    }
    __syncthreads();
    FX_ROWS(h, a.H) {
        const auto at = [&](int i) { return (first + i) * a.H + h; };
        const float mean = fx::lane_sum(a.L - first, [&](int i) { return weight[at(i)] * by_weight[at(i)]; });
        FX_LANES(i, a.L - first) by_score[at(i)] = weight[at(i)] * (by_weight[at(i)] - mean);
    }
    __syncthreads();
    FX_FOR(i, a.Ip) {
        float s = 0.0f;
        if (i < I)
            for (int t = first; t <= last; ++t) s += by_score[t * a.H + i / a.D] * kv[(int64_t)t * a.Kv + i];
        dq[i] = s * scale;
    }
    FX_FOR(j, a.L * a.Kv) {
        const int t = j / a.Kv, c = j % a.Kv;
        float d = 0.0f;
        if (t >= first && c < I) d = by_score[t * a.H + c / a.D] * q[c] * scale;
        else if (t >= first && c < 2 * I) d = weight[t * a.H + (c - I) / a.D] * d_o[c - I];
        dkv[j] = d;
    }
    const float added = fx::block_sum(a.Sp, [&](int j) { return (out[j] - x[j]) * (out[j] - x[j]); });
    const float state = fx::block_sum(a.Sp, [&](int j) { return x[j] * x[j]; });
    const float present = fx::block_sum(a.H, [&](int h) { return weight[last * a.H + h]; });
    const float entropy = fx::block_sum((a.L - first) * a.H, [&](int i) {
        const float w = weight[first * a.H + i];
        return w == 0.0f ? 0.0f : -w * logf(w);
    });
    FX_FOR(one, 1) {
        const float heads = (float)a.H, spread = a.L - first > 1 ? logf((float)(a.L - first)) : 1.0f;
        const float values[ATTENTION_STATS] = {added, state, present / heads, entropy / (heads * spread)};
        for (int i = 0; i < ATTENTION_STATS; ++i) a.stats[r * ATTENTION_STATS + i] = values[i];
    }
}

FX_KERNEL_ANYBLOCK(attention_metrics) {
    __shared__ double sums[ATTENTION_STATS];
    for (int i = 0; i < ATTENTION_STATS; ++i) {
        const double s = fx::block_sum_f64(a.R, [&](int r) { return (double)a.stats[r * ATTENTION_STATS + i]; });
        FX_FOR(one, 1) sums[i] = s;
    }
    __syncthreads();
    FX_FOR(one, 1) {
        a.metrics[0] = sums[1] == 0.0 ? 0.0f : (float)sqrt(sums[0] / sums[1]);
        a.metrics[1] = (float)(sums[2] / a.R);
        a.metrics[2] = (float)(sums[3] / a.R);
    }
}
