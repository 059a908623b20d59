// Sums and dot products that one thread makes, for many short ones at once: as many as there are threads, no shuffles. The order of
// the additions depends on n alone.
#pragma once
#include "lib/kernel.h"
#include "lib/reduce.h"

namespace fx {

// sum_i f(i), i < n: four sums side by side on a GPU, eight on the host.
template <class F>
FX_DEVICE float thread_sum(int n, F f) {
#ifdef FX_GPU
    float s[4] = {};
    int i = 0;
#pragma unroll 1  // code that runs once is paid for by its length
    for (; i + 4 <= n; i += 4)
#pragma unroll
        for (int k = 0; k < 4; ++k) s[k] += f(i + k);
#pragma unroll 1
    for (; i < n; ++i) s[0] += f(i);
    return (s[0] + s[1]) + (s[2] + s[3]);
#else
    return block_sum(n, f);
#endif
}

// sum_i a[i] b[i], i < n; both start on 16 bytes where n is a multiple of 4.
FX_DEVICE float thread_dot(int n, const float *a, const float *b) {
#ifdef FX_GPU
    if (n % 4 == 0) {
        float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (int i = 0; i < n; i += 4) {
            const float4 x = *reinterpret_cast<const float4 *>(a + i), y = *reinterpret_cast<const float4 *>(b + i);
            s = make_float4(fmaf(x.x, y.x, s.x), fmaf(x.y, y.y, s.y), fmaf(x.z, y.z, s.z), fmaf(x.w, y.w, s.w));
        }
        return (s.x + s.y) + (s.z + s.w);
    }
#endif
    return thread_sum(n, [&](int i) { return a[i] * b[i]; });
}

}  // namespace fx
