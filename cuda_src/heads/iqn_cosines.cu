// iqn_cosines: the levels tau and tau' of implicit quantile networks (Dabney 2018), uniform and independent, and the features
// cos(pi k tau), k = 0..C-1, of their embedding (eq. 4).
//
// A level is m 2^-24 with an integer m, so k tau modulo 2 is exact in integers, and the cosine is as good at k = 63 as at k = 1;
// cosf(pi k tau) in f32 would lose six bits there. One polynomial for both targets, so no special function is called.
//
// Launch: grid (ceil(rows / IQN_COSINE_ROWS)), any block; a warp a level. Bytes: 4 Cp written a level; 20 flops a cosine.
#include "lib/kernel.h"
#include "lib/philox.h"

#include "abi/types.h"

#include "abi/iqn.h"
#include "lib/rows.h"

namespace {

// cos(pi r) for r = q 2^-24 in [0, 1], as sin(pi (1/2 - r)) by its Taylor series, whose remainder there is 7e-10.
FX_DEVICE float cos_pi(int q) {
    constexpr int HALF = 1 << (IQN_TAU_BITS - 1);
    const float t = (float)(HALF - q) * (3.14159265358979f / (float)(1 << IQN_TAU_BITS)), s = t * t;
    float p = 1.6059043837e-10f;
    p = p * s - 2.5052108385e-8f;
    p = p * s + 2.7557319224e-6f;
    p = p * s - 1.9841269841e-4f;
    p = p * s + 8.3333333333e-3f;
    p = p * s - 1.6666666667e-1f;
    return t + t * s * p;
}

}  // namespace

FX_KERNEL_ANYBLOCK(iqn_cosines) {
    __shared__ int levels[IQN_COSINE_ROWS];
    const int begin = (int)blockIdx.x * IQN_COSINE_ROWS, rows = min(IQN_COSINE_ROWS, a.rows - begin);
    const uint64_t seed = a.step->seed, rng_step = a.step->rng_step;
    FX_FOR(r, rows) {  // a thread a level: 32 lanes drawing the same one took longer than its cosines
        const int m = (int)(fx::philox(seed, rng_step, RNG_IQN, (uint32_t)(begin + r)).x >> (32 - IQN_TAU_BITS));
        levels[r] = m;
        a.tau[begin + r] = (float)m * (1.0f / (float)(1 << IQN_TAU_BITS));
    }
    __syncthreads();
    FX_ROWS(r, rows) {
        const uint32_t m = (uint32_t)levels[r];
        float *out = a.cosines + (size_t)(begin + r) * a.Cp;
        FX_LANES(k, a.Cp) {
            constexpr int ONE = 1 << IQN_TAU_BITS;
            const int q = (int)((uint32_t)k * m & (uint32_t)(2 * ONE - 1));  // k tau modulo 2: wraps harmlessly
            const float c = q ? cos_pi(q > ONE ? 2 * ONE - q : q) : 1.0f;    // exact: dE_0 is then de (children/iqn.py)
            out[k] = k < a.C ? c : 0.0f;
        }
    }
}
