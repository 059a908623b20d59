// Block-wide reductions in a fixed order, for FX_KERNEL_ANYBLOCK kernels (see kernel.h).
//
// Each is called by every thread of the block, evaluates f(i) once for each i in [0, n), and gives every thread the
// result. The order of the additions depends on n and blockDim.x alone: same launch, same bits. NaN is never lost:
// a maximum or minimum over values of which one is NaN is NaN.
#pragma once
#include "lib/kernel.h"

namespace fx {

struct op_sum {
    template <class T>
    FX_DEVICE T operator()(T a, T b) const {
        return a + b;
    }
};
struct op_max {  // keeps NaN
    template <class T>
    FX_DEVICE T operator()(T a, T b) const {
        return (a != a) ? a : ((b != b) ? b : (a > b ? a : b));
    }
};
struct op_min {  // keeps NaN
    template <class T>
    FX_DEVICE T operator()(T a, T b) const {
        return (a != a) ? a : ((b != b) ? b : (a < b ? a : b));
    }
};

struct indexed {  // value and where it stands; order: larger value, then lower index; NaN wins over all
    float v;
    int i;
};
struct op_argmax {
    FX_DEVICE indexed operator()(indexed a, indexed b) const {
        bool an = a.v != a.v, bn = b.v != b.v;
        if (an || bn) return an && (!bn || a.i < b.i) ? a : b;
        return (a.v > b.v || (a.v == b.v && a.i < b.i)) ? a : b;
    }
};

#ifdef FX_GPU
template <class T>
FX_DEVICE T shuffle_xor(T v, int lane) {
    return __shfl_xor_sync(0xffffffffu, v, lane);
}
FX_DEVICE indexed shuffle_xor(indexed v, int lane) {
    return {__shfl_xor_sync(0xffffffffu, v.v, lane), __shfl_xor_sync(0xffffffffu, v.i, lane)};
}

template <class T, class Op>
FX_DEVICE T warp_combine(T v, Op op) {
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1) v = op(v, shuffle_xor(v, lane));
    return v;
}

// Combines one value per thread; all threads receive the result.
template <class T, class Op>
FX_DEVICE T block_combine(T v, Op op) {
    v = warp_combine(v, op);
    int warps = (int)blockDim.x >> 5;
    if (warps == 1) return v;
    __shared__ T part[32];
    __syncthreads();  // an earlier reduction may still be reading part
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    T r = part[0];
    for (int w = 1; w < warps; ++w) r = op(r, part[w]);
    return r;
}

template <class T, class Op, class F>
FX_DEVICE T block_reduce(int n, T identity, Op op, F f) {
    T v = identity;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) v = op(v, f(i));
    return block_combine(v, op);
}
#else
// One thread a block: eight partial results, so that the compiler may use vector registers, then a fixed tree.
template <class T, class Op, class F>
inline T block_reduce(int n, T identity, Op op, F f) {
    T p[8] = {identity, identity, identity, identity, identity, identity, identity, identity};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) p[j] = op(p[j], f(i + j));
    for (int j = 0; i + j < n; ++j) p[j] = op(p[j], f(i + j));
    return op(op(op(p[0], p[4]), op(p[2], p[6])), op(op(p[1], p[5]), op(p[3], p[7])));
}
#endif

template <class F>
FX_DEVICE float block_sum(int n, F f) {
    return block_reduce(n, 0.0f, op_sum(), f);
}
template <class F>
FX_DEVICE double block_sum_f64(int n, F f) {
    return block_reduce(n, 0.0, op_sum(), f);
}
// n >= 1 for the rest: a maximum over nothing has no value, and a sentinel would be one (known failure K11).
template <class F>
FX_DEVICE float block_max(int n, F f) {
    return block_reduce(n, -INFINITY, op_max(), f);
}
template <class F>
FX_DEVICE float block_min(int n, F f) {
    return block_reduce(n, INFINITY, op_min(), f);
}
template <class F>
FX_DEVICE indexed block_argmax(int n, F f) {
    return block_reduce(n, indexed{-INFINITY, 0x7fffffff}, op_argmax(), [&](int i) { return indexed{f(i), i}; });
}

}  // namespace fx
