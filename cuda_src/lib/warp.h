// What a warp does with values that its lanes hold: sums and maxima that share their shuffles, the device's own exponential, and a
// distribution of N atoms of which lane l has the atoms l, l + 32, ... in registers. For kernels with a row of their own for a GPU.
#pragma once
#include "lib/kernel.h"

namespace fx {

constexpr uint32_t ALL_LANES = 0xffffffffu;

FX_DEVICE int lane_id() { return (int)(threadIdx.x & 31); }
FX_DEVICE int warp_id() { return (int)(threadIdx.x >> 5); }
FX_DEVICE int warps() { return (int)(blockDim.x >> 5); }

// Unsigned integers that order like the floats; +0 = -0; NaN above all.
FX_DEVICE uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return x != x ? 0xffffffffu : ((int)bits < 0 ? ~bits : bits | 0x80000000u);
}

constexpr float LOG2_E = 1.44269504f;

// 2^x; what lies below the normal numbers is 0.
FX_DEVICE float exp2_fast(float x) {
#ifdef FX_GPU
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// Largest over the warp, NaN left out.
FX_DEVICE float warp_max(float x) {
#pragma unroll
    for (int bit = 16; bit > 0; bit >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, bit));
    return x;
}

// Sum over the warp.
FX_DEVICE float warp_sum(float x) {
#pragma unroll
    for (int bit = 16; bit > 0; bit >>= 1) x += __shfl_xor_sync(ALL_LANES, x, bit);
    return x;
}

// One step of adding up two values of every lane at once: lanes without `bit` go on with the first, the others with the second.
FX_DEVICE float halve(float first, float second, int bit) {
    const bool upper = lane_id() & bit;
    return (upper ? second : first) + __shfl_xor_sync(ALL_LANES, upper ? first : second, bit);
}
FX_DEVICE float halve_max(float first, float second, int bit) {
    const bool upper = lane_id() & bit;
    return fmaxf(upper ? second : first, __shfl_xor_sync(ALL_LANES, upper ? first : second, bit));
}

// Sums over the warp of eight values a lane, each by the same tree: lane l has that of v[gathered(l)], and so have the four
// lanes that differ from it in the last two bits.
FX_DEVICE float gather_sums(const float (&v)[8]) {
    const float a = halve(v[0], v[4], 16), b = halve(v[1], v[5], 16), c = halve(v[2], v[6], 16),
                d = halve(v[3], v[7], 16);
    float sum = halve(halve(a, c, 8), halve(b, d, 8), 4);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}
FX_DEVICE float gathered(float sums, int i) { return __shfl_sync(ALL_LANES, sums, 4 * i); }

// Largest over the warp of four values a lane, NaN left out: lane l has that of v[l / 8].
FX_DEVICE float gather_max(const float (&v)[4]) {
    float top = halve_max(halve_max(v[0], v[2], 16), halve_max(v[1], v[3], 16), 8);
#pragma unroll
    for (int bit = 4; bit > 0; bit >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, bit));
    return top;
}

// A lane's atoms of a distribution of N.
template <int A>
struct lane_atoms {
    float v[A];
};

// Where a lane finds them in a row: those beyond the last repeat the first.
template <int A>
struct lane_places {
    int at[A];

    FX_DEVICE explicit lane_places(int N) {
#pragma unroll
        for (int i = 0; i < A; ++i) at[i] = lane_id() + 32 * i < N ? lane_id() + 32 * i : 0;
    }
};

}  // namespace fx
