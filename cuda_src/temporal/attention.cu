// attention, attention_backward, attention_metrics: what stands between the products of the attention block (Vaswani et al. 2017), at
// the last position of each window alone: one query a row, H heads, softmax in f32 over the states held.
//
//   attention            grid (R, passes), any block: a row of a pass a block
//   attention_backward   grid (R), any block
//   attention_metrics    grid (1)
//
// Dynamic shared memory, floats: L*H, and on the way back 2*L*H.
// A head's distance penalty is that of ALiBi (Press et al. 2022): slope 2^(-8 (h+1) / H), so that positions are told apart without
// parameters. Flops a row: 4*L*I there, 8*L*I back; bytes: kv once, on the way back dkv too. A score is one thread's, so that all
// rows of kv are on their way at once.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"
#include "lib/thread_sum.h"

#include "abi/types.h"

#include "abi/attention.h"
#include "temporal/window.h"

namespace {

FX_DEVICE float slope(int h, int heads) { return exp2f(-8.0f * (float)(h + 1) / (float)heads); }

}  // namespace

FX_KERNEL_ANYBLOCK(attention) {
    FX_DYNAMIC_SHARED(float, weight);  // (L, H), scores at first
    const int r = (int)blockIdx.x, pass = (int)blockIdx.y, at = pass * a.R + r, last = a.L - 1, I = a.H * a.D;
    const float *q = a.q + (int64_t)at * a.Ip, *kv = a.kv + (int64_t)at * a.L * a.Kv;
    float *kept = a.weight + (int64_t)at * a.L * a.H;
    const int first = fx::first_held(a.L, (pass == 0 ? a.length0 : a.length1)[r]), n = a.L - first;
    const float scale = 1.0f / sqrtf((float)a.D);

    const float *x = pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2);
    FX_FOR(j, a.Sp) a.out[(int64_t)at * a.Sp + j] = x[(int64_t)r * a.Sp + j];
    FX_FOR(i, n * a.H) {
        const int t = first + i / a.H, h = i % a.H;
        const float dot = fx::thread_dot(a.D, q + h * a.D, kv + (int64_t)t * a.Kv + h * a.D);
        weight[t * a.H + h] = dot * scale - slope(h, a.H) * (float)(last - t);
    }
    __syncthreads();
    FX_ROWS(h, a.H) {
        const auto score = [&](int i) { return weight[(first + i) * a.H + h]; };
        const float top = fx::lane_max(n, score);
        const float sum = fx::lane_sum(n, [&](int i) { return expf(score(i) - top); });
        FX_LANES(t, first) kept[t * a.H + h] = 0.0f;
        FX_LANES(i, n) {
            const float w = expf(score(i) - top) / sum;
            weight[(first + i) * a.H + h] = kept[(first + i) * a.H + h] = w;
        }
    }
    __syncthreads();
    float *o = a.o + (int64_t)at * a.Ip;
#ifdef FX_GPU
    FX_FOR(i, a.Ip) {
        const int h = i / a.D;
        const float *v = kv + (int64_t)first * a.Kv + I + i, *w = weight + first * a.H + h;
        o[i] = i < I ? fx::thread_sum(n, [&](int t) { return w[t * a.H] * v[t * a.Kv]; }) : 0.0f;
    }
#else
    for (int i = 0; i < a.Ip; ++i) o[i] = 0.0f;
    for (int t = first; t <= last; ++t)
        for (int h = 0; h < a.H; ++h) {
            const float *v = kv + (int64_t)t * a.Kv + I, w = weight[t * a.H + h];
            for (int i = h * a.D; i < (h + 1) * a.D; ++i) o[i] += w * v[i];
        }
#endif
}

FX_KERNEL_ANYBLOCK(attention_backward) {
    FX_DYNAMIC_SHARED(float, weight);      // (L, H)
    float *by_score = weight + a.L * a.H;  // (L, H), the gradient by the weight at first
    const int r = (int)blockIdx.x, last = a.L - 1, I = a.H * a.D, first = fx::first_held(a.L, a.length[r]),
              n = a.L - first;
    const float *q = a.q + (int64_t)r * a.Ip, *kv = a.kv + (int64_t)r * a.L * a.Kv, *d_o = a.d_o + (int64_t)r * a.Ip;
    const float *kept = a.weight + (int64_t)r * a.L * a.H;
    float *dq = a.dq + (int64_t)r * a.Ip, *dkv = a.dkv + (int64_t)r * a.L * a.Kv;
    const float scale = 1.0f / sqrtf((float)a.D);

    FX_FOR(i, n * a.H) {
        const int t = first + i / a.H, h = i % a.H;
        weight[t * a.H + h] = kept[t * a.H + h];
        by_score[t * a.H + h] = fx::thread_dot(a.D, d_o + h * a.D, kv + (int64_t)t * a.Kv + I + h * a.D);
    }
    __syncthreads();
    FX_ROWS(h, a.H + 1) {  // a head, or the statistics
        if (h < a.H) {
            const auto at = [&](int i) { return (first + i) * a.H + h; };
            const float mean = fx::lane_sum(n, [&](int i) { return weight[at(i)] * by_score[at(i)]; });
            FX_LANES(i, n) by_score[at(i)] = weight[at(i)] * (by_score[at(i)] - mean);
            continue;
        }
        const float *x = a.x + (int64_t)r * a.Sp, *out = a.out + (int64_t)r * a.Sp;
        float squares[2];
        fx::lane_sums<2>(a.Sp, 2, squares, [&](int j, int k) {
            const float v = k ? x[j] : out[j] - x[j];
            return v * v;
        });
        const float present = fx::lane_sum(a.H, [&](int k) { return weight[last * a.H + k]; });
        const float entropy = fx::lane_sum(n * a.H, [&](int i) {
            const float w = weight[first * a.H + i];
            return w == 0.0f ? 0.0f : -w * logf(w);
        });
        FX_LANE_0 {
            const float heads = (float)a.H, spread = n > 1 ? logf((float)n) : 1.0f;
            const float values[ATTENTION_STATS] = {squares[0], squares[1], present / heads, entropy / (heads * spread)};
            for (int i = 0; i < ATTENTION_STATS; ++i) a.stats[r * ATTENTION_STATS + i] = values[i];
        }
    }
    __syncthreads();
    FX_FOR(i, first * a.Kv) dkv[i] = 0.0f;
    float *to = dkv + (int64_t)first * a.Kv;
#ifdef FX_GPU
    FX_FOR(i, a.Ip) {
        const float *k = kv + (int64_t)first * a.Kv + i, *s = by_score + first * a.H + i / a.D;
        dq[i] = i < I ? fx::thread_sum(n, [&](int t) { return s[t * a.H] * k[t * a.Kv]; }) * scale : 0.0f;
    }
    FX_LANES(c, a.Kv) {
        const bool key = c < I;
        const int i = key ? c : c - I;
        const float by = key ? q[i] * scale : (i < I ? d_o[i] : 0.0f);
        const float *w = (key ? by_score : weight) + first * a.H + (i < I ? i / a.D : 0);
        FX_ROWS(t, n) to[t * a.Kv + c] = w[t * a.H] * by;
    }
#else
    for (int i = 0; i < a.Ip; ++i) dq[i] = 0.0f;
    for (int t = 0; t < n; ++t) {
        const float *k = kv + (int64_t)(first + t) * a.Kv;
        float *row = to + (int64_t)t * a.Kv;
        for (int h = 0; h < a.H; ++h) {
            const float s = by_score[(first + t) * a.H + h] * scale, w = weight[(first + t) * a.H + h];
            for (int i = h * a.D; i < (h + 1) * a.D; ++i) {
                dq[i] += s * k[i];
                row[i] = s * q[i];
                row[I + i] = w * d_o[i];
            }
        }
        for (int i = 2 * I; i < a.Kv; ++i) row[i] = 0.0f;
    }
#endif
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
