// CUDA's vector types and the 16-bit floating-point types, for cuda_on_host.h.
#pragma once
#include <stdint.h>
#include <string.h>

struct uint3 {
    unsigned x, y, z;
};
struct int3 {
    int x, y, z;
};
struct float3 {
    float x, y, z;
};
struct dim3 {
    unsigned x, y, z;
#ifndef FX_HOST_ENGINE  // the engine keeps one in thread-local storage, which wants a trivial type
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
#endif
};

#define FX_HOST_VECTOR(T, name)                                                    \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                             \
    struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    static inline constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }    \
    static inline constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
FX_HOST_VECTOR(char, char)
FX_HOST_VECTOR(unsigned char, uchar)
FX_HOST_VECTOR(short, short)
FX_HOST_VECTOR(unsigned short, ushort)
FX_HOST_VECTOR(int, int)
FX_HOST_VECTOR(unsigned, uint)
FX_HOST_VECTOR(float, float)
FX_HOST_VECTOR(double, double)
FX_HOST_VECTOR(long long, longlong)
FX_HOST_VECTOR(unsigned long long, ulonglong)
#undef FX_HOST_VECTOR
static inline constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline constexpr int3 make_int3(int x, int y, int z) { return {x, y, z}; }
static inline constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }

template <class To, class From>
inline __attribute__((always_inline)) To fx_host_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// bfloat16: the upper half of a float, rounded to nearest even.
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    inline __nv_bfloat16(float f) {
        uint32_t u = fx_host_bits<uint32_t>(f);
        bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    inline operator float() const { return fx_host_bits<float>((uint32_t)bits << 16); }
};
static_assert(sizeof(__nv_bfloat16) == 2);
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline float __bfloat162float(__nv_bfloat16 h) { return (float)h; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return fx_host_bits<__nv_bfloat16>(u); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }

// IEEE binary16, by the compiler's own type.
struct __half {
    uint16_t bits;
    __half() = default;
    inline __half(float f) { bits = fx_host_bits<uint16_t>((_Float16)f); }
    inline operator float() const { return (float)fx_host_bits<_Float16>(bits); }
};
static_assert(sizeof(__half) == 2);
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
static inline __half __float2half(float f) { return __half(f); }
static inline __half __float2half_rn(float f) { return __half(f); }
static inline float __half2float(__half h) { return (float)h; }
static inline __half __ushort_as_half(unsigned short u) { return fx_host_bits<__half>(u); }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
