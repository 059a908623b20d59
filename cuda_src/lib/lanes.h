// A vector of adjacent floats, the unit in which the dense kernels read, multiply and write: one 16-byte access of a
// thread on a GPU, one AVX register on the host (explicit, because loops over accumulator arrays are not reliably
// vectorized by g++). Addresses are multiples of 16 bytes; widths are padded to 16 floats, so no tail exists.
#pragma once
#include "lib/kernel.h"

// Full unrolling of a loop whose trip count is a compile-time constant, on both targets.
#ifdef FX_GPU
#define FX_UNROLL _Pragma("unroll")
#else
#define FX_UNROLL _Pragma("GCC unroll 16")
#endif

namespace fx {

#ifdef FX_GPU
constexpr int LANES = 4;
struct lanes {
    float4 v;
};
FX_DEVICE lanes load_lanes(const float *p) { return {*reinterpret_cast<const float4 *>(p)}; }
FX_DEVICE void store_lanes(float *p, lanes a) { *reinterpret_cast<float4 *>(p) = a.v; }

template <class F>
FX_DEVICE lanes map_lanes(F f, lanes a) {
    return {make_float4(f(a.v.x), f(a.v.y), f(a.v.z), f(a.v.w))};
}
template <class F>
FX_DEVICE lanes map_lanes(F f, lanes a, lanes b) {
    return {make_float4(f(a.v.x, b.v.x), f(a.v.y, b.v.y), f(a.v.z, b.v.z), f(a.v.w, b.v.w))};
}

FX_DEVICE lanes splat(float x) { return {make_float4(x, x, x, x)}; }
FX_DEVICE lanes operator+(lanes a, lanes b) {
    return map_lanes([](float x, float y) { return x + y; }, a, b);
}
FX_DEVICE lanes operator-(lanes a, lanes b) {
    return map_lanes([](float x, float y) { return x - y; }, a, b);
}
FX_DEVICE lanes operator*(lanes a, lanes b) {
    return map_lanes([](float x, float y) { return x * y; }, a, b);
}
FX_DEVICE lanes operator/(lanes a, lanes b) {
    return map_lanes([](float x, float y) { return x / y; }, a, b);
}
FX_DEVICE lanes fma(lanes a, lanes b, lanes c) {
    return {make_float4(fmaf(a.v.x, b.v.x, c.v.x), fmaf(a.v.y, b.v.y, c.v.y), fmaf(a.v.z, b.v.z, c.v.z),
                        fmaf(a.v.w, b.v.w, c.v.w))};
}
FX_DEVICE lanes sqrt(lanes a) {
    return map_lanes([](float x) { return sqrtf(x); }, a);
}
FX_DEVICE lanes relu(lanes a) {
    return map_lanes([](float x) { return x < 0.0f ? 0.0f : x; }, a);
}
// v where h is not <= 0 (so NaN keeps v), else 0: the derivative of ReLU applied to v, h its output.
FX_DEVICE lanes relu_gradient(lanes v, lanes h) {
    return map_lanes([](float x, float y) { return y <= 0.0f ? 0.0f : x; }, v, h);
}
FX_DEVICE float sum(lanes a) { return (a.v.x + a.v.z) + (a.v.y + a.v.w); }
FX_DEVICE double sum_of_squares(lanes a) {
    double x = a.v.x, y = a.v.y, z = a.v.z, w = a.v.w;
    return (x * x + z * z) + (y * y + w * w);
}
#else
constexpr int LANES = 8;
typedef float lanes __attribute__((vector_size(32), aligned(16), may_alias));
FX_DEVICE lanes load_lanes(const float *p) { return *reinterpret_cast<const lanes *>(p); }
FX_DEVICE void store_lanes(float *p, lanes a) { *reinterpret_cast<lanes *>(p) = a; }
FX_DEVICE lanes splat(float x) { return lanes{x, x, x, x, x, x, x, x}; }
FX_DEVICE lanes fma(lanes a, lanes b, lanes c) { return a * b + c; }  // contracted where the processor can
FX_DEVICE lanes sqrt(lanes a) {
    lanes r;
    for (int i = 0; i < LANES; ++i) r[i] = __builtin_sqrtf(a[i]);
    return r;
}
FX_DEVICE lanes relu(lanes a) { return a < 0.0f ? splat(0.0f) : a; }  // as on the GPU: NaN stays
FX_DEVICE lanes relu_gradient(lanes v, lanes h) { return h <= 0.0f ? splat(0.0f) : v; }
FX_DEVICE float sum(lanes a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }
FX_DEVICE double sum_of_squares(lanes a) {
    double p[4];
    for (int i = 0; i < 4; ++i) p[i] = (double)a[i] * (double)a[i] + (double)a[i + 4] * (double)a[i + 4];
    return (p[0] + p[2]) + (p[1] + p[3]);
}
#endif

}  // namespace fx
