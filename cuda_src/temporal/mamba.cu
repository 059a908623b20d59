// mamba_scan, mamba_scan_backward, temporal_metrics: the Mamba-2 block (Dao & Gu 2024) between its matrix products, at the last
// position of each window. See mamba.h for the form of the scan.
//
//   mamba_scan            grid (R, passes), any block: a row of a pass a block
//   mamba_scan_backward   grid (blocks), any block: rows_per_block rows one after the other, whose gradients of the small
//                         parameters it adds up in shared memory, ascending; grad_reduce adds the blocks
//   temporal_metrics      grid (1)
//
// Dynamic shared memory, floats, with M = tile, E = Cp + 1, and Q = (L + W-1)*Wp where tile >= L, else 0 (then proj is staged, once,
// behind rows of zeros, and its activations are made once; else they are made tile by tile, on the way back twice):
//   mamba_scan            P + Q + M*E + N + L*H + 2*Ip + H
//   mamba_scan_backward   P + Q + (2*M + W-1)*E + P + 3*N + 2*L + 5*L*H + Ip
// Bytes: proj once, on the way back dproj once. Nothing of the way there is kept but y: the weights are computed again.
// Rows of activations are E = Cp + 1 floats apart, so that the threads of a warp that read down a column meet different banks.
// What a block reads of global memory is on its way before the first barrier, the small parameters too: one trip to L2.
#include "lib/kernel.h"
#include "lib/reduce.h"
#include "lib/rows.h"

#include "abi/types.h"

#include "abi/temporal.h"
#include "temporal/mamba.h"
#include "temporal/window.h"

namespace {

template <bool P>
struct padded {
    static constexpr bool value = P;
};

// What a block reads of proj and of the small parameters: their copies in shared memory; on the host, and for windows that do not
// fit, proj itself.
struct input {
    const float *global;
    float *staged;  // position 0, behind W - 1 rows of zeros; or null

    // Calls f with it and whether the zeros are there; on a GPU the two kinds of pointer have code of their own.
    template <class F>
    FX_DEVICE void with(F f) const {
#ifdef FX_GPU
        if (staged) return f((const float *)staged, padded<true>{});
#endif
        f(global, padded<false>{});
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
    // `count` zeros at p; the small parameters at `to`. Returns where the parameters are.
    static FX_DEVICE const float *begin(float *p, int count, const float *small, float *to, int n) {
#ifdef FX_GPU
        FX_FOR(i, count) p[i] = 0.0f;
        FX_FOR(i, n / 4) fx::copy_async(to + 4 * i, small + 4 * i);
        return to;
#else
        return small;
#endif
    }
};

}  // namespace

FX_KERNEL_ANYBLOCK(mamba_scan) {
    FX_DYNAMIC_SHARED(float, shared);
    const int r = (int)blockIdx.x, pass = (int)blockIdx.y, at = pass * a.R + r, last = a.L - 1, ld = a.Cp + 1;
    const bool whole = a.tile >= a.L;
    const int zeros = whole ? (a.W - 1) * a.Wp : 0;
    float *window = shared + a.P;
    const fx::mamba m(a, input::begin(window, zeros, pass < 2 ? a.theta : a.target, shared, a.P));
    const input in{a.proj + (int64_t)at * a.L * a.Wp, whole ? window + zeros : nullptr};
    const int first = fx::first_held(a.L, (pass == 0 ? a.length0 : a.length1)[r]), n = a.L - first;
    float *act = window + (whole ? zeros + a.L * a.Wp : 0), *c = act + a.tile * ld, *q = c + m.N, *gate = q + m.L * m.H,
          *v = gate + a.Ip, *share = v + a.Ip;

    in.stage(a.L * a.Wp);
    const float *x = pass == 0 ? a.x0 : (pass == 1 ? a.x1 : a.x2), *z = a.z + (int64_t)at * a.Ip;
    FX_FOR(j, a.Sp) a.out[(int64_t)at * a.Sp + j] = x[(int64_t)r * a.Sp + j];
    FX_FOR(i, a.Ip) {
        gate[i] = fx::silu(z[i]);
        v[i] = 0.0f;
    }
    input::wait();
    __syncthreads();

    in.with([&](const float *u, auto) {
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
        in.with([&](const float *u, auto pad) {
            if (from == first)
                FX_FOR(k, m.N) c[k] = m.channel(u, last, m.I + m.N + k);
            m.template activate<decltype(pad)::value>(u, from, to, m.I + m.N, act, nullptr, ld);
        });
        __syncthreads();
        FX_FOR(i, to - from) {  // the whole weight of a position: by C_L . B_t too
            const float g = fx::thread_sum(m.N, [&](int k) { return c[k] * act[i * ld + m.I + k]; });
            for (int h = 0; h < m.H; ++h) q[(from + i) * m.H + h] *= g;
        }
        __syncthreads();
#ifdef FX_GPU
        FX_FOR(i, m.I) {
            const int h = i / m.D;
            v[i] += fx::thread_sum(to - from, [&](int k) { return q[(from + k) * m.H + h] * act[k * ld + i]; });
            if (to == a.L) v[i] += m.d[h] * act[(last - from) * ld + i];
        }
#else
        for (int t = from; t < to; ++t)
            for (int h = 0; h < m.H; ++h) {
                const float weight = q[t * m.H + h] + (t == last ? m.d[h] : 0.0f);
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
    const int last = a.L - 1, begin = (int)blockIdx.x * a.rows_per_block, end = min(begin + a.rows_per_block, a.R);
    const bool whole = a.tile >= a.L;
    const int ld = a.Cp + 1, halo = a.W - 1, zeros = whole ? halo * a.Wp : 0;
    float *window = shared + a.P;
    const fx::mamba m(a, input::begin(window, zeros, a.theta, shared, a.P));
    float *act = window + (whole ? zeros + a.L * a.Wp : 0), *slope = act + a.tile * ld,
          *sums = slope + (a.tile + halo) * ld, *c = sums + a.P, *c_slope = c + m.N, *by_c = c_slope + m.N,
          *g = by_c + m.N, *dg = g + m.L, *q = dg + m.L, *e = q + m.L * m.H, *tail = e + m.L * m.H,
          *sig = tail + m.L * m.H, *dw = sig + m.L * m.H, *dy = dw + m.L * m.H;
    FX_FOR(i, a.P) sums[i] = 0.0f;
    FX_FOR(i, TEMPORAL_STATS) stats[i] = 0.0f;
    input::wait();

    for (int r = begin; r < end; ++r) {
        const input in{a.proj + (int64_t)r * a.L * a.Wp, whole ? window + zeros : nullptr};
        float *du = a.dproj + (int64_t)r * a.L * a.Wp;
        const int first = fx::first_held(a.L, a.length[r]), n = a.L - first;
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
                FX_LANE_0 { stats[0] += s[0], stats[1] += s[1], stats[2] += a.memory[r], stats[3] += (float)n; }
            }
        }
        FX_FOR(i, first * m.Wp) du[i] = 0.0f;
        FX_FOR(k, m.N) by_c[k] = 0.0f;
        input::wait();
        __syncthreads();

        // The weights of the positions again: q_t = dt_t e_t, e_t = exp(A tail_t), tail_t the sum of the steps behind t.
        in.with([&](const float *u, auto) {
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
            in.with([&](const float *u, auto pad) {
                m.template activate<decltype(pad)::value>(u, from, to, m.I + m.N, act, slope + halo * ld, ld);
            });
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
                in.with([&](const float *u, auto pad) {
                    m.template activate<decltype(pad)::value>(u, from, to, m.I + m.N, act, d, ld);
                });
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

            in.with([&](const float *u, [[maybe_unused]] auto pad) {
#ifdef FX_GPU
                const int across = fx::ceil_div(m.C, 32);
                FX_ROWS(k, (m.W + 1) * across) {  // a tap, or the bias, of 32 channels
                    const int j = k / across, i = k % across * 32 + ((int)threadIdx.x & 31);
                    if (i >= m.C) continue;
                    const float *column = d + i;
                    if (j == m.W) {
                        sums[a.bias_at + i] += fx::thread_sum(rows, [&](int t) { return column[t * ld]; });
                        continue;
                    }
                    const int skip = decltype(pad)::value ? 0 : max(0, m.W - 1 - j - from);
                    const float *p = u + (from - m.W + 1 + j) * m.Wp + i;
                    sums[j * m.Cp + i] += fx::thread_sum(
                        rows - skip, [&](int t) { return column[(t + skip) * ld] * p[(t + skip) * m.Wp]; });
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
            m.to_input(d, from, max(first, from - halo), to == a.L ? a.L : to - halo, ld, du);
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
