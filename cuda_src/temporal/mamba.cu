// mamba_scan, mamba_scan_backward, temporal_metrics: the Mamba-2 block (Dao & Gu 2024) between its matrix products, at the last
// position of each window. See mamba.h for the form of the scan.
//
//   mamba_scan            grid (R, passes), any block: a row of a pass a block
//   mamba_scan_backward   grid (blocks), any block: rows_per_block rows one after the other, whose gradients of the small
//                         parameters it adds up in shared memory, ascending; grad_reduce adds the blocks
//   temporal_metrics      grid (1)
//
// Dynamic shared memory, floats, with M = tile, E = Cp + 1, and Q = L*Wp where tile >= L, else 0 (then proj is staged, once, and its
// activations are made once; else they are made tile by tile, on the way back twice):
//   mamba_scan            Q + M*E + N + L + L*H + 2*Ip + H
//   mamba_scan_backward   Q + (2*M + W-1)*E + P + 3*N + 2*L + 5*L*H + Ip
// Bytes: proj once, on the way back dproj once. Nothing of the way there is kept but y: the weights are computed again.
// Rows of activations are E = Cp + 1 floats apart, so that the threads of a warp that read down a column meet different banks.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"

#include "abi/temporal.h"
#include "temporal/mamba.h"

namespace {

// What a block reads of proj: its copy in shared memory, or on the host and where it does not fit the windows themselves.
struct input {
    const float *global;
    float *staged;

    // Calls f with it; on a GPU the two kinds of pointer have code of their own.
    template <class F>
    FX_DEVICE void with(F f) const {
#ifdef FX_GPU
        if (staged) return f((const float *)staged);
#endif
        f(global);
    }
    FX_DEVICE void stage(int floats) const {
#ifdef FX_GPU
        if (staged)
            FX_FOR(i, floats / 4) fx::copy_async(staged + 4 * i, global + 4 * i);
#endif
    }
    static FX_DEVICE void wait() {
#ifdef FX_GPU
        fx::copy_async_wait();
#endif
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(mamba_scan) {
    FX_DYNAMIC_SHARED(float, shared);
    const int r = (int)blockIdx.x, pass = (int)blockIdx.y, at = pass * a.R + r, last = a.L - 1, ld = a.Cp + 1;
    const fx::mamba m(a, pass < 2 ? a.theta : a.target);
    const bool whole = a.tile >= a.L;
    const input in{a.proj + (int64_t)at * a.L * a.Wp, whole ? shared : nullptr};
    const int first = a.L - (pass == 0 ? a.length0 : a.length1)[r], n = a.L - first;
    float *act = shared + (whole ? a.L * a.Wp : 0), *c = act + a.tile * ld, *g = c + m.N, *q = g + m.L,
          *gate = q + m.L * m.H, *v = gate + a.Ip, *share = v + a.Ip;

    in.stage(a.L * a.Wp);
    const float *x = pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2), *z = a.z + (int64_t)at * a.Ip;
    FX_FOR(j, a.Sp) a.out[(int64_t)at * a.Sp + j] = x[(int64_t)r * a.Sp + j];
    FX_FOR(i, a.Ip) {
        gate[i] = fx::silu(z[i]);
        v[i] = 0.0f;
    }
    input::wait();
    __syncthreads();

    in.with([&](const float *u) {
        FX_ROWS(h, m.H) {
            const float decay = m.decay(h);
            float before = 0.0f;  // weights of the positions before the last
            fx::lane_scan(
                n, [&](int i) { return fx::softplus(m.raw_step(u, last - i, h)); },
                [&](int i, float dt, float tail) {
                    const float weight = expf(decay * tail) * dt;
                    q[(last - i) * m.H + h] = weight;
                    if (i) before += weight;
                });
            before = fx::lane_total(before);
            FX_LANE_0 share[h] = before / (before + fx::softplus(m.raw_step(u, last, h)));
        }
    });
    for (int from = first; from < a.L; from += a.tile) {
        const int to = min(from + a.tile, a.L);
        in.with([&](const float *u) {
            if (from == first)
                FX_FOR(k, m.N) c[k] = m.channel(u, last, m.I + m.N + k);
            m.activate(u, from, to, m.I + m.N, act, nullptr, ld);
        });
        __syncthreads();
        FX_FOR(i, to - from) g[from + i] = fx::thread_sum(m.N, [&](int k) { return c[k] * act[i * ld + m.I + k]; });
        __syncthreads();
#ifdef FX_GPU
        FX_FOR(i, m.I) {
            const int h = i / m.D;
            v[i] += fx::thread_sum(to - from,
                                   [&](int k) { return q[(from + k) * m.H + h] * g[from + k] * act[k * ld + i]; });
            if (to == a.L) v[i] += m.d[h] * act[(last - from) * ld + i];
        }
#else
        for (int t = from; t < to; ++t)
            for (int h = 0; h < m.H; ++h) {
                const float weight = q[t * m.H + h] * g[t] + (t == last ? m.d[h] : 0.0f);
                for (int p = h * m.D; p < (h + 1) * m.D; ++p) v[p] += weight * act[(t - from) * ld + p];
            }
#endif
        if (to < a.L) __syncthreads();  // the next tile takes the place of this one
    }
    FX_FOR(i, a.Ip) {
        a.y[(int64_t)at * a.Ip + i] = v[i];
        v[i] *= gate[i];
    }
    __syncthreads();
    const float scale =
        1.0f / sqrtf(fx::block_sum(m.I, [&](int i) { return v[i] * v[i]; }) / (float)m.I + fx::NORM_EPS);
    FX_FOR(i, a.Ip) a.gated[(int64_t)at * a.Ip + i] = i < m.I ? v[i] * scale * m.norm[i] : 0.0f;
    FX_FOR(one, 1) {
        float memory = 0.0f;
        for (int h = 0; h < m.H; ++h) memory += share[h];
        a.memory[at] = memory / (float)m.H;
    }
}

FX_KERNEL_ANYBLOCK(mamba_scan_backward) {
    FX_DYNAMIC_SHARED(float, shared);
    __shared__ float stats[TEMPORAL_STATS];
    const fx::mamba m(a, a.theta);
    const int last = a.L - 1, begin = (int)blockIdx.x * a.rows_per_block, end = min(begin + a.rows_per_block, a.R);
    const bool whole = a.tile >= a.L;
    const int ld = a.Cp + 1, halo = m.W - 1;
    float *act = shared + (whole ? a.L * a.Wp : 0), *slope = act + a.tile * ld, *sums = slope + (a.tile + halo) * ld,
          *c = sums + a.P, *c_slope = c + m.N, *by_c = c_slope + m.N, *g = by_c + m.N, *dg = g + m.L, *q = dg + m.L,
          *e = q + m.L * m.H, *tail = e + m.L * m.H, *sig = tail + m.L * m.H, *dw = sig + m.L * m.H,
          *dy = dw + m.L * m.H;
    FX_FOR(i, a.P) sums[i] = 0.0f;
    FX_FOR(i, TEMPORAL_STATS) stats[i] = 0.0f;

    for (int r = begin; r < end; ++r) {
        const input in{a.proj + (int64_t)r * a.L * a.Wp, whole ? shared : nullptr};
        float *du = a.dproj + (int64_t)r * a.L * a.Wp;
        const int first = a.L - a.length[r], n = a.L - first;
        __syncthreads();  // what the row before has read is free
        in.stage(a.L * a.Wp);

        // A row of work each: the norm and the gate, gated = norm v / rms(v), v = y silu(z); and the statistics.
        FX_ROWS(job, 2) {
            if (job == 0) {
                const float *z = a.z + (int64_t)r * a.Ip, *y = a.y + (int64_t)r * a.Ip;
                const float *dgated = a.dgated + (int64_t)r * a.Ip;
                float s[2];  // squares of v, and the gradient along it
                fx::lane_sums<2>(m.I, 2, s, [&](int i, int k) {
                    const float v = y[i] * fx::silu(z[i]);
                    return k ? dgated[i] * m.norm[i] * v : v * v;
                });
                const float scale = 1.0f / sqrtf(s[0] / (float)m.I + fx::NORM_EPS);
                const float along = scale * scale * s[1] / (float)m.I;
                float *dz = a.dz + (int64_t)r * a.Ip;
                FX_LANES(i, a.Ip) {
                    const bool real = i < m.I;
                    const float gate = fx::silu(z[i]), v = y[i] * gate, by_norm = real ? dgated[i] * m.norm[i] : 0.0f;
                    const float dv = scale * (by_norm - v * along);
                    if (real) sums[a.norm_at + i] += dgated[i] * v * scale;
                    dy[i] = dv * gate;
                    dz[i] = real ? dv * y[i] * fx::silu_gradient(z[i]) : 0.0f;
                }
            } else {
                const float *x = a.x + (int64_t)r * a.Sp, *out = a.out + (int64_t)r * a.Sp;
                float s[2];
                fx::lane_sums<2>(a.Sp, 2, s, [&](int j, int k) {
                    const float v = k ? x[j] : out[j] - x[j];
                    return v * v;
                });
                FX_LANE_0 {
                    stats[0] += s[0], stats[1] += s[1], stats[2] += a.memory[r], stats[3] += (float)a.length[r];
                }
            }
        }
        FX_FOR(i, first * m.Wp) du[i] = 0.0f;
        FX_FOR(k, m.N) by_c[k] = 0.0f;
        input::wait();
        __syncthreads();

        // The weights of the positions again: q_t = dt_t e_t, e_t = exp(A tail_t), tail_t the sum of the steps behind t.
        in.with([&](const float *u) {
            FX_ROWS(h, m.H) {
                const float decay = m.decay(h);
                fx::lane_scan(
                    n, [&](int i) { return fx::softplus(m.raw_step(u, last - i, h)); },
                    [&](int i, float dt, float behind) {
                        const int th = (last - i) * m.H + h;
                        tail[th] = behind;
                        e[th] = expf(decay * behind);
                        q[th] = e[th] * dt;
                        sig[th] = fx::sigmoid(m.raw_step(u, last - i, h));
                    });
            }
            FX_FOR(k, m.N) {
                const float s = m.convolved(u, last, m.I + m.N + k);
                c[k] = fx::silu(s);
                c_slope[k] = fx::silu_gradient(s);
            }
        });
        for (int from = first; from < a.L; from += a.tile) {
            const int to = min(from + a.tile, a.L);
            in.with([&](const float *u) { m.activate(u, from, to, m.I + m.N, act, slope + halo * ld, ld); });
            __syncthreads();
            FX_FOR(i, (to - from) * (m.H + 1)) {  // g_t = C_L . B_t, and by the weight of a position: dy . x_t
                const int t = i / (m.H + 1), h = i % (m.H + 1);
                const float *row = act + t * ld;
                if (h < m.H) {
                    const float *d = dy + h * m.D, *x = row + h * m.D;
                    dw[(from + t) * m.H + h] = fx::thread_sum(m.D, [&](int p) { return d[p] * x[p]; });
                } else {
                    g[from + t] = fx::thread_sum(m.N, [&](int k) { return c[k] * row[m.I + k]; });
                }
            }
            __syncthreads();
        }

        // Steps and decay of a head: the weight of t falls with every step behind it, so a step collects what the positions
        // before it pass on. Beside them the gradient by C_L . B_t.
        FX_ROWS(h, m.H + 1) {
            if (h == m.H) {
                FX_LANES(i, n) {
                    const int at = (first + i) * m.H;
                    float s = 0.0f;
                    for (int k = 0; k < m.H; ++k) s += dw[at + k] * q[at + k];
                    dg[first + i] = s;
                }
                continue;
            }
            const float decay = m.decay(h);
            float by_decay = 0.0f, by_raw = 0.0f;
            fx::lane_scan(
                n, [&](int i) { return dw[(first + i) * m.H + h] * q[(first + i) * m.H + h] * g[first + i]; },
                [&](int i, float by_exponent, float passed) {
                    const int t = first + i, th = t * m.H + h;
                    const float raw = (dw[th] * e[th] * g[t] + decay * passed) * sig[th];
                    du[t * m.Wp + m.C + h] = raw;
                    by_decay += by_exponent * tail[th];
                    by_raw += raw;
                });
            by_decay = fx::lane_total(by_decay), by_raw = fx::lane_total(by_raw);
            FX_LANE_0 {
                sums[a.d_at + h] += dw[last * m.H + h];
                sums[a.a_at + h] += by_decay * decay;
                sums[a.dt_at + h] += by_raw;
            }
        }
        __syncthreads();

        // Channels, tile by tile: through the activation in place of its slope, then the convolution's parameters and its input,
        // of which the last W - 1 positions wait for the next tile.
        for (int from = first; from < a.L; from += a.tile) {
            const int to = min(from + a.tile, a.L), rows = to - from;
            float *d = slope + halo * ld;
            if (from != first || to != a.L) {
                in.with([&](const float *u) { m.activate(u, from, to, m.I + m.N, act, d, ld); });
                __syncthreads();
            }
#ifdef FX_GPU
            FX_LANES(i, m.I + m.N) {
                const int h = i / m.D;
                const float by = i < m.I ? dy[i] : c[i - m.I], skip = i < m.I ? m.d[h] : 0.0f;
                FX_ROWS(k, rows) {
                    const int t = from + k;
                    const float weight = i < m.I ? q[t * m.H + h] * g[t] + (t == last ? skip : 0.0f) : dg[t];
                    d[k * ld + i] *= weight * by;
                }
            }
#else
            for (int t = from; t < to; ++t) {
                float *row = d + (t - from) * ld;
                for (int h = 0; h < m.H; ++h) {
                    const float weight = q[t * m.H + h] * g[t] + (t == last ? m.d[h] : 0.0f);
                    for (int p = h * m.D; p < (h + 1) * m.D; ++p) row[p] *= weight * dy[p];
                }
                for (int k = 0; k < m.N; ++k) row[m.I + k] *= dg[t] * c[k];
            }
#endif
            FX_FOR(k, m.N) {  // C counts at the last position alone
                by_c[k] += fx::thread_sum(rows, [&](int i) { return dg[from + i] * act[i * ld + m.I + k]; });
                float *column = d + m.I + m.N + k;
                for (int i = 0; i < rows; ++i) column[i * ld] = from + i == last ? c_slope[k] * by_c[k] : 0.0f;
            }
            __syncthreads();

            const int done = max(first, from - halo), stop = to == a.L ? a.L : to - halo;
            in.with([&](const float *u) {
#ifdef FX_GPU
                const int across = fx::ceil_div(m.C, 32);
                FX_ROWS(k, (m.W + 1) * across) {  // a tap, or the bias, of 32 channels
                    const int j = k / across, i = k % across * 32 + ((int)threadIdx.x & 31);
                    if (i >= m.C) continue;
                    const int skip = j < m.W ? max(0, m.W - 1 - j - from) : 0;
                    const float *p = u + (from - m.W + 1 + j) * m.Wp + i;
                    const float s =
                        j < m.W ? fx::thread_sum(
                                      rows - skip, [&](int t) { return d[(t + skip) * ld + i] * p[(t + skip) * m.Wp]; })
                                : fx::thread_sum(rows, [&](int t) { return d[t * ld + i]; });
                    sums[j < m.W ? j * m.Cp + i : a.bias_at + i] += s;
                }
#else
                for (int t = from; t < to; ++t) {
                    const float *__restrict row = d + (t - from) * ld;
                    for (int i = 0; i < m.C; ++i) sums[a.bias_at + i] += row[i];
                    for (int j = max(0, m.W - 1 - t); j < m.W; ++j) {
                        const float *p = u + (t - m.W + 1 + j) * m.Wp;
                        float *__restrict sum = sums + j * m.Cp;
                        for (int i = 0; i < m.C; ++i) sum[i] += row[i] * p[i];
                    }
                }
#endif
            });
#ifdef FX_GPU
            FX_LANES(i, m.C) {
                FX_ROWS(k, stop - done) {
                    const int t = done + k;
                    float s = 0.0f;
                    for (int j = 0; j < m.W && t + j <= last; ++j)
                        s += m.conv[(m.W - 1 - j) * m.Cp + i] * d[(t + j - from) * ld + i];
                    du[t * m.Wp + i] = s;
                }
            }
#else
            for (int t = done; t < stop; ++t) {
                float *__restrict to_input = du + t * m.Wp;
                for (int i = 0; i < m.C; ++i) to_input[i] = 0.0f;
                for (int j = 0; j < m.W && t + j <= last; ++j) {
                    const float *w = m.conv + (m.W - 1 - j) * m.Cp, *row = d + (t + j - from) * ld;
                    for (int i = 0; i < m.C; ++i) to_input[i] += w[i] * row[i];
                }
            }
#endif
            if (to == a.L) break;
            __syncthreads();
            FX_FOR(i, m.C)
                for (int k = 0; k < halo; ++k) slope[k * ld + i] = slope[(k + rows) * ld + i];
            __syncthreads();
        }
        const int used = m.C + m.H, pads = m.Wp - used;
        FX_ROWS(t, n) { FX_LANES(i, pads) du[(first + t) * m.Wp + used + i] = 0.0f; }
    }
    __syncthreads();
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
