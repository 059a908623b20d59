// Mathematical functions, for cuda_on_host.h. Written so that g++ keeps them inline and vectorizes loops over them:
// as library calls, fmaxf, fminf, expf and logf were the largest cost of the loss and activation kernels.
#pragma once

// fmaxf, fminf: a NaN operand is ignored, as in CUDA and IEEE 754-2008 maxNum.
FX_HOST_FN float fx_host_fmaxf(float a, float b) {
    return b != b ? a : (a > b ? a : b);
}
FX_HOST_FN float fx_host_fminf(float a, float b) { return b != b ? a : (a < b ? a : b); }

// exp(x) = 2^n exp(r), |r| <= ln(2)/2: range reduction in two parts and the minimax polynomial of Cephes expf.
// Largest error 0.99 ulp. Overflows to infinity, underflows gradually, keeps NaN.
FX_HOST_FN float fx_host_expf(float x) {
    float c = x > 89.0f ? 89.0f : (x < -104.0f ? -104.0f : x);  // NaN stays NaN
    const float round = 12582912.0f;                            // 1.5 * 2^23: the sum rounds to an integer
    float shifted = c * 1.44269504088896341f + round;
    float n = shifted - round;
    float r = __builtin_fmaf(n, -0.693359375f, c);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    // Two factors, because 2^n alone overflows at n = 128 and underflows below -126.
    int k = (int)(fx_host_bits<uint32_t>(shifted) - 0x4b400000u), half = k >> 1;
    float y =
        p * fx_host_bits<float>((uint32_t)(half + 127) << 23) * fx_host_bits<float>((uint32_t)(k - half + 127) << 23);
    return x != x ? x : y;
}

// log(x) by Cephes logf: x = 2^e m, m in [sqrt(1/2), sqrt(2)); largest error 0.79 ulp. Zero gives -infinity, negative numbers NaN.
FX_HOST_FN float fx_host_logf(float x) {
    float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;  // subnormal
    float bias = x < 1.17549435e-38f ? -23.0f : 0.0f;
    uint32_t u = fx_host_bits<uint32_t>(scaled) - 0x3f3504f3u;  // sqrt(1/2)
    float e = (float)((int32_t)u >> 23) + bias;
    float m = fx_host_bits<float>((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float z = m * m;
    float p = 7.0376836292e-2f;
    p = __builtin_fmaf(p, m, -1.1514610310e-1f);
    p = __builtin_fmaf(p, m, 1.1676998740e-1f);
    p = __builtin_fmaf(p, m, -1.2420140846e-1f);
    p = __builtin_fmaf(p, m, 1.4249322787e-1f);
    p = __builtin_fmaf(p, m, -1.6668057665e-1f);
    p = __builtin_fmaf(p, m, 2.0000714765e-1f);
    p = __builtin_fmaf(p, m, -2.4999993993e-1f);
    p = __builtin_fmaf(p, m, 3.3333331174e-1f);
    float y = p * m * z;
    y = __builtin_fmaf(e, -2.12194440e-4f, y);
    y = __builtin_fmaf(z, -0.5f, y);
    y = m + y;
    y = __builtin_fmaf(e, 0.693359375f, y);
    y = x == INFINITY ? INFINITY : y;
    y = x == 0.0f ? -INFINITY : y;
    return x < 0.0f || x != x ? __builtin_nanf("") : y;
}

// log(1 + x) from log(u), u = 1 + x rounded, by what the rounding of u left out (Goldberg 1991, theorem 4); about 2 ulp for x > -1/2.
FX_HOST_FN float fx_host_log1pf(float x) {
    float u = 1.0f + x, d = u - 1.0f;
    float y = fx_host_logf(u) * (x / d);
    return d == 0.0f ? x : (u == INFINITY ? u : y);
}

#define fmaxf fx_host_fmaxf
#define fminf fx_host_fminf
#define expf fx_host_expf
#define logf fx_host_logf
#define log1pf fx_host_log1pf
#define __expf fx_host_expf  // macros: glibc declares functions of these names
#define __logf fx_host_logf
#define __powf powf

FX_HOST_FN float __fdividef(float a, float b) { return a / b; }
FX_HOST_FN float __fdiv_rn(float a, float b) { return a / b; }
FX_HOST_FN float __fsqrt_rn(float a) { return sqrtf(a); }
FX_HOST_FN float __frcp_rn(float a) { return 1.0f / a; }
FX_HOST_FN float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FX_HOST_FN float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }  // NaN gives 0
FX_HOST_FN float rsqrtf(float a) { return 1.0f / sqrtf(a); }
FX_HOST_FN double rsqrt(double a) { return 1.0 / sqrt(a); }
FX_HOST_FN int __float2int_rn(float f) { return (int)nearbyintf(f); }
FX_HOST_FN int __float2int_rd(float f) { return (int)floorf(f); }
FX_HOST_FN int __float2int_rz(float f) { return (int)f; }
FX_HOST_FN float __int2float_rn(int i) { return (float)i; }

// The roundings between product and sum that nvcc's __fmul_rn, __fadd_rn keep apart: g++ would contract a * b + c.
FX_HOST_FN float fx_host_opaque(float v) {
#if defined(__x86_64__)
    __asm__("" : "+x"(v));
#else
    __asm__("" : "+w"(v));
#endif
    return v;
}
FX_HOST_FN float __fmul_rn(float a, float b) { return fx_host_opaque(a * b); }
FX_HOST_FN float __fadd_rn(float a, float b) { return fx_host_opaque(a + b); }
FX_HOST_FN float __fsub_rn(float a, float b) { return fx_host_opaque(a - b); }

#define FX_HOST_MINMAX(T)                                          \
    FX_HOST_FN constexpr T max(T a, T b) { return a > b ? a : b; } \
    FX_HOST_FN constexpr T min(T a, T b) { return a < b ? a : b; }
FX_HOST_MINMAX(int)
FX_HOST_MINMAX(unsigned)
FX_HOST_MINMAX(long)
FX_HOST_MINMAX(unsigned long)
FX_HOST_MINMAX(long long)
FX_HOST_MINMAX(unsigned long long)
#undef FX_HOST_MINMAX
FX_HOST_FN constexpr unsigned max(int a, unsigned b) {
    return max((unsigned)a, b);
}
FX_HOST_FN constexpr unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
FX_HOST_FN constexpr unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
FX_HOST_FN constexpr unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
FX_HOST_FN float max(float a, float b) { return fx_host_fmaxf(a, b); }
FX_HOST_FN float min(float a, float b) { return fx_host_fminf(a, b); }
FX_HOST_FN double max(double a, double b) { return b != b ? a : (a > b ? a : b); }
FX_HOST_FN double min(double a, double b) { return b != b ? a : (a < b ? a : b); }
