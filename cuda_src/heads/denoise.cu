// Denoising as an auxiliary task (denoising autoencoders: Vincent et al. 2008): rows of the batch with Gaussian noise on their
// state, and a linear head on the trunk's output that has to say what they were before. docs/step/denoise.md.
//
//   denoise_rows   row k copies row floor((k + xi) / H * B) of the batch, one of every stratum; s~ = s + sigma * n, n ~ N(0, 1)
//   denoise_loss   loss = 1 / (H S) sum (y - s)^2 and its gradient by y, the head's output on s~
//   denoise_trunk  the gradient by the trunk's output within its share of the gradient budget
//
// Launches: see each. Bytes: 16 Sp a row; 12 S a row; 8 H Hp, and 4 H Hp a block, or with denoise_norms 4 H.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/denoise.h"
#include "heads/share.h"
#include "lib/philox.h"
#include "lib/reduce.h"

// Grid (H,), any block. Philox elements of row k: k E, its source; k E + 1 + j / 2, the noise of columns j and j + 1; E = 1 + S / 2,
// rounded up.
FX_KERNEL_ANYBLOCK(denoise_rows) {
    const int k = (int)blockIdx.x, Sp = a.Sp, pairs = fx::ceil_div(a.S, 2);
    const uint64_t seed = a.step->seed, rng_step = a.step->rng_step;
    const uint32_t first = (uint32_t)k * (uint32_t)(pairs + 1);
    const uint4 random = fx::philox(seed, rng_step, RNG_NOISE, first);
    const double at = ((double)k + fx::uniform01_f64(random.x, random.y)) / (double)a.H * (double)a.B;
    const int source = min((int)at, a.B - 1);
    const float *s = a.drawn_state + (int64_t)source * Sp, *next = a.drawn_next_state + (int64_t)source * Sp;
    float *state = a.batch_state + (int64_t)k * Sp, *next_state = a.batch_next_state + (int64_t)k * Sp;
    FX_FOR(p, pairs) {
        const uint4 r = fx::philox(seed, rng_step, RNG_NOISE, first + 1u + (uint32_t)p);
        const int j = 2 * p;
        state[j] = s[j] + a.sigma * fx::normal01(r.x, r.y);
        if (j + 1 < a.S) state[j + 1] = s[j + 1] + a.sigma * fx::normal01(r.z, r.w);
    }
    FX_FOR(j, Sp - a.S) state[a.S + j] = 0.0f;
    FX_FOR(j, Sp) next_state[j] = next[j];
    FX_FOR(one, 1) {
        a.batch_action[k] = a.drawn_action[source];
        a.batch_return[k] = a.drawn_return[source];
        a.batch_discount[k] = a.drawn_discount[source];
        a.batch_index[k] = a.drawn_index[source];
        a.batch_priority[k] = a.drawn_priority[source];
        a.source[k] = source;
    }
}

FX_KERNEL_ANYBLOCK(denoise_loss) {
    const int k = (int)blockIdx.x, S = a.S;
    const float *y = a.output + (int64_t)k * a.Np, *noised = a.noised + (int64_t)k * a.Sp;
    const float *s = a.clean + (int64_t)a.source[k] * a.Sp;
    float *dy = a.doutput + (int64_t)k * a.Np;
    const float each = 2.0f / ((float)a.H * (float)S);
    FX_FOR(j, S) dy[j] = each * (y[j] - s[j]);
    FX_FOR(j, a.Np - S) dy[S + j] = 0.0f;
    const float error = fx::block_sum(S, [&](int j) { return (y[j] - s[j]) * (y[j] - s[j]); });
    const float noise = fx::block_sum(S, [&](int j) { return (noised[j] - s[j]) * (noised[j] - s[j]); });
    FX_FOR(one, 1) {
        a.rows[k * DENOISE_COLUMNS + DENOISE_LOSS] = error / (float)S;
        a.rows[k * DENOISE_COLUMNS + DENOISE_NOISE] = noise / (float)S;
    }
}

FX_KERNEL_ANYBLOCK(denoise_norms) {
    const float *dx = a.dx + (int64_t)blockIdx.x * a.Hp;
    const float norm2 = fx::block_sum(a.Hp, [&](int i) { return dx[i] * dx[i]; });
    FX_FOR(one, 1) a.norms[blockIdx.x] = norm2;
}

// Every block adds up all squares itself, or, where they are many, those of the rows: cheaper than one more node. A gradient that
// is not finite stays with the head, whose update is skipped: the trunk gets nothing of it.
FX_KERNEL_ANYBLOCK(denoise_trunk) {
    const int n = a.H * a.Hp;
    const float norm2 = a.norms ? fx::block_sum(a.H, [&](int i) { return a.norms[i]; })
                                : fx::block_sum(n, [&](int i) { return a.dx[i] * a.dx[i]; });
    const float norm = a.weight * sqrtf(norm2);
    const bool finite = norm <= 3.402823466e38f;
    const float scale = finite ? fx::share_scale(a.share * a.step->grad_budget, norm) : 0.0f;
    const int each = fx::ceil_div(n, (int)gridDim.x), first = (int)blockIdx.x * each;
    FX_FOR(i, min(each, n - first)) a.dtrunk[first + i] = finite ? scale * a.weight * a.dx[first + i] : 0.0f;
    if (blockIdx.x == 0)
        FX_FOR(one, 1) *a.scale = scale;
}
