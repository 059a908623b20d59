// bfloat16 in memory, f32 in registers: the upper half of an f32, rounded to nearest, ties to even; NaN stays NaN.
#pragma once
#include "lib/lanes.h"

namespace fx {

// The nearest f32 that has `bits` bits of mantissa: 7 for bf16, 10 for TF32.
FX_DEVICE uint32_t round_mantissa(uint32_t u, int bits) {
    const int drop = 23 - bits;
    const uint32_t rounded = u + ((1u << (drop - 1)) - 1u + ((u >> drop) & 1u));
    return (u & 0x7fffffffu) > 0x7f800000u ? u : rounded & ~((1u << drop) - 1u);
}

#ifdef FX_GPU
FX_DEVICE float round_mantissa(float x, int bits) { return __uint_as_float(round_mantissa(__float_as_uint(x), bits)); }
FX_DEVICE lanes round_mantissa(lanes a, int bits) {
    return map_lanes([=](float x) { return round_mantissa(x, bits); }, a);
}
// Two in one word, `low` in its lower half. One instruction from sm_80 on, for twenty; NaN becomes 0x7fff
// (https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt).
FX_DEVICE uint32_t bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FX_DEVICE lanes load_lanes(const uint16_t *p) {
    const uint2 q = *reinterpret_cast<const uint2 *>(p);
    return {make_float4(__uint_as_float(q.x << 16), __uint_as_float(q.x & 0xffff0000u), __uint_as_float(q.y << 16),
                        __uint_as_float(q.y & 0xffff0000u))};
}
FX_DEVICE void store_lanes(uint16_t *p, lanes a) {
    *reinterpret_cast<uint2 *>(p) = make_uint2(bf16_pair(a.v.x, a.v.y), bf16_pair(a.v.z, a.v.w));
}
#else
typedef uint32_t word_lanes __attribute__((vector_size(32)));
typedef uint16_t half_lanes __attribute__((vector_size(16), aligned(16), may_alias));
FX_DEVICE lanes round_mantissa(lanes a, int bits) {
    const int drop = 23 - bits;
    const word_lanes u = (word_lanes)a;
    const word_lanes rounded = (u + ((1u << (drop - 1)) - 1u + ((u >> drop) & 1u))) & ~((1u << drop) - 1u);
    return (lanes)((u & 0x7fffffffu) > 0x7f800000u ? u : rounded);
}
FX_DEVICE lanes load_lanes(const uint16_t *p) {
    return (lanes)(__builtin_convertvector(*reinterpret_cast<const half_lanes *>(p), word_lanes) << 16);
}
FX_DEVICE void store_lanes(uint16_t *p, lanes a) {
    const word_lanes u = (word_lanes)round_mantissa(a, 7);
    const word_lanes kept = (u & 0x7fffffffu) > 0x7f800000u ? word_lanes{} + 0x7fffu : u >> 16;
    *reinterpret_cast<half_lanes *>(p) = __builtin_convertvector(kept, half_lanes);
}
#endif

}  // namespace fx
