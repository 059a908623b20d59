// mamba_scan, mamba_scan_backward, temporal_metrics: the Mamba-2 block (Dao & Gu 2024) between its matrix products, at the last
// position of each window. See mamba.h for the form of the scan.
//
//   mamba_scan            grid (R, passes), any block: a row of a pass a block
//   mamba_scan_backward   grid (blocks), any block: rows_per_block rows one after the other, whose gradients of the small
//                         parameters it adds up in shared memory, ascending; grad_reduce adds the blocks
//   temporal_metrics      grid (1)
//
// Dynamic shared memory, floats: mamba_scan N + L + L*H + Ip; mamba_scan_backward P + N + 2 L + 3 L*H + Ip.
// Bytes: proj once (the convolution's taps come from the first-level cache), on the way back also dproj, twice.
// Nothing of the way there is kept but y: the weights are computed again.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"

#include "abi/temporal.h"
#include "temporal/mamba.h"

FX_KERNEL_ANYBLOCK(mamba_scan) {
    FX_DYNAMIC_SHARED(float, shared);
    const int r = (int)blockIdx.x, pass = (int)blockIdx.y, at = pass * a.R + r, last = a.L - 1;
    const fx::mamba m(a, pass < 2 ? a.theta : a.target);
    const float *u = a.proj + (int64_t)at * a.L * a.Wp, *z = a.z + (int64_t)at * a.Ip;
    const int first = a.L - (pass == 0 ? a.length0 : a.length1)[r];
    float *c = shared, *g = c + m.N, *q = g + m.L, *v = q + m.L * m.H;

    FX_FOR(n, m.N) c[n] = m.channel(u, last, m.I + m.N + n);
    FX_FOR(h, m.H) {
        const float decay = m.decay(h);
        float tail = 0.0f;  // sum of the steps behind t
        for (int t = last; t >= first; --t) {
            const float dt = fx::softplus(m.raw_step(u, t, h));
            q[t * m.H + h] = expf(decay * tail) * dt;
            tail += dt;
        }
    }
    __syncthreads();
    FX_ROWS(i, m.L - first) {
        const float dot = fx::lane_sum(m.N, [&](int n) { return c[n] * m.channel(u, first + i, m.I + n); });
        FX_LANE_0 g[first + i] = dot;
    }
    __syncthreads();
    FX_FOR(i, a.Ip) {
        float y = 0.0f, gate = 0.0f;
        if (i < m.I) {
            const int h = i / m.D;
            for (int t = first; t < last; ++t) y += q[t * m.H + h] * g[t] * m.channel(u, t, i);
            y += (q[last * m.H + h] * g[last] + m.d[h]) * m.channel(u, last, i);
            gate = fx::silu(z[i]);
        }
        a.y[(int64_t)at * a.Ip + i] = y;
        v[i] = y * gate;
    }
    __syncthreads();
    const float scale =
        1.0f / sqrtf(fx::block_sum(m.I, [&](int i) { return v[i] * v[i]; }) / (float)m.I + fx::NORM_EPS);
    FX_FOR(i, a.Ip) a.gated[(int64_t)at * a.Ip + i] = i < m.I ? v[i] * scale * m.norm[i] : 0.0f;
    const float *x = pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2);
    FX_FOR(j, a.Sp) a.out[(int64_t)at * a.Sp + j] = x[(int64_t)r * a.Sp + j];
    const float memory = fx::block_sum(m.H, [&](int h) {
        float before = 0.0f;
        for (int t = first; t < last; ++t) before += q[t * m.H + h];
        return before / (before + q[last * m.H + h]);
    });
    FX_FOR(one, 1) a.memory[at] = memory / (float)m.H;
}

FX_KERNEL_ANYBLOCK(mamba_scan_backward) {
    FX_DYNAMIC_SHARED(float, shared);
    const fx::mamba m(a, a.theta);
    const int last = a.L - 1, begin = (int)blockIdx.x * a.rows_per_block, end = min(begin + a.rows_per_block, a.R);
    float *sums = shared, *c = sums + a.P, *g = c + m.N, *dg = g + m.L, *dt = dg + m.L, *q = dt + m.L * m.H,
          *dw = q + m.L * m.H, *dy = dw + m.L * m.H;
    __shared__ float stats[TEMPORAL_STATS];
    FX_FOR(i, a.P) sums[i] = 0.0f;
    FX_FOR(i, TEMPORAL_STATS) stats[i] = 0.0f;
    __syncthreads();

    for (int r = begin; r < end; ++r) {
        const float *u = a.proj + (int64_t)r * a.L * a.Wp, *z = a.z + (int64_t)r * a.Ip, *y = a.y + (int64_t)r * a.Ip;
        const float *dgated = a.dgated + (int64_t)r * a.Ip, *x = a.x + (int64_t)r * a.Sp,
                    *out = a.out + (int64_t)r * a.Sp;
        float *du = a.dproj + (int64_t)r * a.L * a.Wp, *dz = a.dz + (int64_t)r * a.Ip;
        const int first = a.L - a.length[r];

        // The norm and the gate: gated = norm v / rms(v), v = y silu(z).
        const float squares = fx::block_sum(m.I, [&](int i) {
            const float v = y[i] * fx::silu(z[i]);
            return v * v;
        });
        const float along = fx::block_sum(m.I, [&](int i) { return dgated[i] * m.norm[i] * y[i] * fx::silu(z[i]); });
        const float scale = 1.0f / sqrtf(squares / (float)m.I + fx::NORM_EPS);
        FX_FOR(i, a.Ip) {
            if (i >= m.I) {
                dz[i] = 0.0f;
                continue;
            }
            const float gate = fx::silu(z[i]), v = y[i] * gate;
            const float dv = scale * (dgated[i] * m.norm[i] - v * scale * scale * along / (float)m.I);
            sums[a.norm_at + i] += dgated[i] * v * scale;
            dy[i] = dv * gate;
            dz[i] = dv * y[i] * fx::silu_gradient(z[i]);
        }

        // The weights of the positions again; q holds sum_{k>t} dt_k for now.
        FX_FOR(n, m.N) c[n] = m.channel(u, last, m.I + m.N + n);
        FX_FOR(h, m.H) {
            float tail = 0.0f;
            for (int t = last; t >= first; --t) {
                dt[t * m.H + h] = fx::softplus(m.raw_step(u, t, h));
                q[t * m.H + h] = tail;
                tail += dt[t * m.H + h];
            }
        }
        __syncthreads();
        FX_ROWS(i, m.L - first) {
            const float dot = fx::lane_sum(m.N, [&](int n) { return c[n] * m.channel(u, first + i, m.I + n); });
            FX_LANE_0 g[first + i] = dot;
        }
        FX_ROWS(i, (m.L - first) * m.H) {  // by the weight of a position: dy . x_t
            const int t = first + i / m.H, h = i % m.H;
            const float dot = fx::lane_sum(m.D, [&](int p) { return dy[h * m.D + p] * m.channel(u, t, h * m.D + p); });
            FX_LANE_0 dw[t * m.H + h] = dot;
        }
        __syncthreads();

        // Steps and decay of a head: the weight of t falls with every step behind it, so a step collects what the positions
        // before it pass on.
        FX_FOR(h, m.H) {
            const float decay = m.decay(h);
            float passed = 0.0f, by_decay = 0.0f;
            sums[a.d_at + h] += dw[last * m.H + h];
            for (int t = 0; t < first; ++t) du[t * m.Wp + m.C + h] = 0.0f;
            for (int t = first; t <= last; ++t) {
                const int th = t * m.H + h;
                const float tail = q[th], e = expf(decay * tail);
                q[th] = e * dt[th];
                const float by_exponent = dw[th] * q[th] * g[t];
                const float by_step = dw[th] * e * g[t] + decay * passed;
                passed += by_exponent;
                by_decay += by_exponent * tail;
                const float raw = by_step * fx::sigmoid(m.raw_step(u, t, h));
                du[t * m.Wp + m.C + h] = raw;
                sums[a.dt_at + h] += raw;
            }
            sums[a.a_at + h] += by_decay * decay;
        }
        __syncthreads();
        FX_FOR(i, m.L - first) {  // by C_L . B_t
            float s = 0.0f;
            for (int h = 0; h < m.H; ++h) s += dw[(first + i) * m.H + h] * q[(first + i) * m.H + h];
            dg[first + i] = s;
        }
        __syncthreads();

        // Channels: through the activation, then the convolution, first into the place of its output, then to its input.
        FX_FOR(i, m.C) {
            const int h = i / m.D;
            const bool is_x = i < m.I, is_c = i >= m.I + m.N;
            float by_c = 0.0f, by_bias = 0.0f;
            if (is_c)
                for (int t = first; t <= last; ++t) by_c += dg[t] * m.channel(u, t, i - m.N);
            for (int t = 0; t < first; ++t) du[t * m.Wp + i] = 0.0f;
            for (int t = first; t <= last; ++t) {
                float d = 0.0f;
                if (is_x) d = (q[t * m.H + h] * g[t] + (t == last ? m.d[h] : 0.0f)) * dy[i];
                else if (!is_c) d = dg[t] * c[i - m.I];
                else if (t == last) d = by_c;
                d *= fx::silu_gradient(m.convolved(u, t, i));
                by_bias += d;
                for (int j = max(0, m.W - 1 - t); j < m.W; ++j)
                    sums[j * m.Cp + i] += d * u[(t - m.W + 1 + j) * m.Wp + i];
                du[t * m.Wp + i] = d;
            }
            sums[a.bias_at + i] += by_bias;
            for (int t = first; t <= last; ++t) {
                float s = 0.0f;
                for (int k = 0; k < m.W && t + k <= last; ++k)
                    s += m.conv[(m.W - 1 - k) * m.Cp + i] * du[(t + k) * m.Wp + i];
                du[t * m.Wp + i] = s;
            }
        }
        const int used = m.C + m.H, pads = m.Wp - used;
        FX_FOR(i, m.L * pads) du[i / pads * m.Wp + used + i % pads] = 0.0f;

        const float added = fx::block_sum(a.Sp, [&](int j) { return (out[j] - x[j]) * (out[j] - x[j]); });
        const float state = fx::block_sum(a.Sp, [&](int j) { return x[j] * x[j]; });
        FX_FOR(one, 1) {
            const float more[TEMPORAL_STATS] = {added, state, a.memory[r], (float)a.length[r]};
            for (int i = 0; i < TEMPORAL_STATS; ++i) stats[i] += more[i];
        }
        __syncthreads();  // the next row begins with what this one has read
    }
    FX_FOR(i, a.P) a.partial[(int64_t)blockIdx.x * a.P + i] = sums[i];
    FX_FOR(i, TEMPORAL_STATS) a.stats[blockIdx.x * TEMPORAL_STATS + i] = stats[i];
}

FX_KERNEL_ANYBLOCK(temporal_metrics) {
    __shared__ double sums[TEMPORAL_STATS];
    for (int i = 0; i < TEMPORAL_STATS; ++i) {
        const double s = fx::block_sum_f64(a.blocks, [&](int b) { return (double)a.stats[b * TEMPORAL_STATS + i]; });
        FX_FOR(one, 1) sums[i] = s;
    }
    __syncthreads();
    FX_FOR(one, 1) {
        a.metrics[0] = sums[1] == 0.0 ? 0.0f : (float)sqrt(sums[0] / sums[1]);
        a.metrics[1] = (float)(sums[2] / a.R);
        a.metrics[2] = (float)(sums[3] / ((double)a.R * a.L));
    }
}
