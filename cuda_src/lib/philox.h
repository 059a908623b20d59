// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a counter-based generator, so
// that a number is a pure function of (seed, rng_step, consumer, element) and any launch shape gives the same one.
#pragma once
#include "lib/kernel.h"

namespace fx {

FX_DEVICE uint4 philox(uint64_t seed, uint64_t rng_step, uint32_t consumer, uint32_t element) {
    uint32_t c0 = (uint32_t)rng_step, c1 = (uint32_t)(rng_step >> 32), c2 = consumer, c3 = element;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// Uniform in [0, 1) with 24 bits.
FX_DEVICE float uniform01(uint32_t x) {
    return (float)(x >> 8) * (1.0f / 16777216.0f);
}

// Uniform in [0, 1) with 53 bits: 24 would not reach every row of a stratum in a ring of 16 million.
FX_DEVICE double uniform01_f64(uint32_t high, uint32_t low) {
    return (double)(((uint64_t)high << 21) | (low >> 11)) * (1.0 / 9007199254740992.0);
}

// Standard normal of two words (Box & Muller 1958); at most 5.8 in size, since the first is taken as a uniform of 24 bits
// in (0, 1].
FX_DEVICE float normal01(uint32_t x, uint32_t y) {
    const float u = (float)((x >> 8) + 1) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cosf(6.28318530717958648f * uniform01(y));
}

}  // namespace fx
