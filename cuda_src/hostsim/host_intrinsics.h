// Synchronization, warp collectives, atomics and bit intrinsics, for cuda_on_host.h.
#pragma once

#define FX_HOST_FN static inline __attribute__((always_inline))

// ---------------------------------------------------------------- barriers and fences
FX_HOST_FN void __syncthreads() {
    fx_host_syncthreads();
}
FX_HOST_FN int __syncthreads_count(int p) { return fx_host_syncthreads_count(p); }
FX_HOST_FN int __syncthreads_or(int p) { return fx_host_syncthreads_count(p) != 0; }
FX_HOST_FN int __syncthreads_and(int p) { return fx_host_syncthreads_count(!p) == 0; }
FX_HOST_FN void __syncwarp(unsigned mask = 0xffffffffu) {
    unsigned present;
    fx_host_warp_gather(mask, 0, &present);
}
FX_HOST_FN void __threadfence_block() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
FX_HOST_FN void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
FX_HOST_FN void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
FX_HOST_FN void __trap() { fx_host_trap(); }
FX_HOST_FN long long clock64() { return fx_host_clock64(); }
FX_HOST_FN void __nanosleep(unsigned) {}

typedef unsigned long long cudaGraphConditionalHandle;
FX_HOST_FN void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) {
    fx_host_set_conditional(handle, value);
}

// ---------------------------------------------------------------- warp collectives
FX_HOST_FN unsigned fx_host_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u;
}

template <class T>
FX_HOST_FN uint64_t fx_host_pack(T v) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof(T));
    return u;
}
template <class T>
FX_HOST_FN T fx_host_unpack(uint64_t u) {
    T v;
    memcpy(&v, &u, sizeof(T));
    return v;
}

// A lane that reads a lane outside of its segment, or one that has exited, keeps its own value.
template <class T>
FX_HOST_FN T fx_host_shuffle(unsigned mask, T v, int source, bool inside) {
    unsigned present;
    const uint64_t *slots = fx_host_warp_gather(mask, fx_host_pack(v), &present);
    return inside && (present >> (source & 31) & 1u) ? fx_host_unpack<T>(slots[source & 31]) : v;
}
template <class T>
FX_HOST_FN T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
    int lane = (int)fx_host_lane();
    return fx_host_shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)), true);
}
template <class T>
FX_HOST_FN T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
    int lane = (int)fx_host_lane(), source = lane ^ lanes;
    return fx_host_shuffle(mask, v, source, source < (lane & ~(width - 1)) + width);
}
template <class T>
FX_HOST_FN T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    int lane = (int)fx_host_lane(), source = lane - (int)delta;
    return fx_host_shuffle(mask, v, source, source >= (lane & ~(width - 1)));
}
template <class T>
FX_HOST_FN T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    int lane = (int)fx_host_lane(), source = lane + (int)delta;
    return fx_host_shuffle(mask, v, source, source < (lane & ~(width - 1)) + width);
}
FX_HOST_FN unsigned __ballot_sync(unsigned mask, int p) {
    unsigned present, votes = 0;
    const uint64_t *slots = fx_host_warp_gather(mask, p != 0, &present);
    for (int l = 0; l < 32; ++l) votes |= (unsigned)(slots[l] & 1u) << l;
    return votes & present;
}
FX_HOST_FN int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
FX_HOST_FN int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
template <class T>
FX_HOST_FN unsigned __match_any_sync(unsigned mask, T v) {
    unsigned present, same = 0;
    uint64_t mine = fx_host_pack(v);
    const uint64_t *slots = fx_host_warp_gather(mask, mine, &present);
    for (int l = 0; l < 32; ++l) same |= (unsigned)(slots[l] == mine) << l;
    return same & present;
}
template <class T, class Op>
FX_HOST_FN T fx_host_warp_fold(unsigned mask, T v, Op op) {
    unsigned present;
    const uint64_t *slots = fx_host_warp_gather(mask, fx_host_pack(v), &present);
    int l = __builtin_ctz(present);
    T r = fx_host_unpack<T>(slots[l]);
    for (++l; l < 32; ++l)
        if (present >> l & 1u) r = op(r, fx_host_unpack<T>(slots[l]));
    return r;
}
FX_HOST_FN int __reduce_add_sync(unsigned m, int v) {
    return fx_host_warp_fold(m, v, [](int a, int b) { return a + b; });
}
FX_HOST_FN unsigned __reduce_add_sync(unsigned m, unsigned v) {
    return fx_host_warp_fold(m, v, [](unsigned a, unsigned b) { return a + b; });
}
FX_HOST_FN int __reduce_max_sync(unsigned m, int v) {
    return fx_host_warp_fold(m, v, [](int a, int b) { return a > b ? a : b; });
}
FX_HOST_FN unsigned __reduce_max_sync(unsigned m, unsigned v) {
    return fx_host_warp_fold(m, v, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
FX_HOST_FN int __reduce_min_sync(unsigned m, int v) {
    return fx_host_warp_fold(m, v, [](int a, int b) { return a < b ? a : b; });
}
FX_HOST_FN unsigned __reduce_min_sync(unsigned m, unsigned v) {
    return fx_host_warp_fold(m, v, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
FX_HOST_FN unsigned __reduce_or_sync(unsigned m, unsigned v) {
    return fx_host_warp_fold(m, v, [](unsigned a, unsigned b) { return a | b; });
}
FX_HOST_FN unsigned __activemask() { return 1u << fx_host_lane(); }  // legal: the set of converged lanes is unspecified

// ---------------------------------------------------------------- atomics (blocks run on several cores)
template <class T>
struct fx_host_atomic {  // the value argument takes no part in deduction, as with CUDA's overloads
    static_assert(__is_same(T, int) || __is_same(T, unsigned) || __is_same(T, unsigned long long) ||
                      __is_same(T, long long),
                  "integer atomics only: floating-point atomics would make results depend on order");
    typedef T value;
};
#define FX_HOST_FETCH(name, builtin)                               \
    template <class T>                                             \
    FX_HOST_FN T name(T *p, typename fx_host_atomic<T>::value v) { \
        return builtin(p, v, __ATOMIC_RELAXED);                    \
    }
FX_HOST_FETCH(atomicAdd, __atomic_fetch_add)
FX_HOST_FETCH(atomicSub, __atomic_fetch_sub)
FX_HOST_FETCH(atomicOr, __atomic_fetch_or)
FX_HOST_FETCH(atomicAnd, __atomic_fetch_and)
FX_HOST_FETCH(atomicXor, __atomic_fetch_xor)
FX_HOST_FETCH(atomicExch, __atomic_exchange_n)
#undef FX_HOST_FETCH
template <class T>
FX_HOST_FN T atomicCAS(T *p, typename fx_host_atomic<T>::value expected, typename fx_host_atomic<T>::value v) {
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
template <class T>
FX_HOST_FN T atomicMin(T *p, typename fx_host_atomic<T>::value v) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
template <class T>
FX_HOST_FN T atomicMax(T *p, typename fx_host_atomic<T>::value v) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v > old && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
FX_HOST_FN unsigned atomicInc(unsigned *p, unsigned limit) {
    unsigned old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, old >= limit ? 0u : old + 1u, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {}
    return old;
}

// ---------------------------------------------------------------- loads, bits, integers
template <class T>
FX_HOST_FN T __ldg(const T *p) {
    return *p;
}
template <class T>
FX_HOST_FN T __ldcs(const T *p) {
    return *p;
}
template <class T>
FX_HOST_FN T __ldcg(const T *p) {
    return *p;
}
template <class T>
FX_HOST_FN void __stcs(T *p, T v) {
    *p = v;
}
template <class T>
FX_HOST_FN void __stcg(T *p, T v) {
    *p = v;
}

FX_HOST_FN unsigned __float_as_uint(float f) { return fx_host_bits<unsigned>(f); }
FX_HOST_FN float __uint_as_float(unsigned u) { return fx_host_bits<float>(u); }
FX_HOST_FN int __float_as_int(float f) { return fx_host_bits<int>(f); }
FX_HOST_FN float __int_as_float(int i) { return fx_host_bits<float>(i); }
FX_HOST_FN long long __double_as_longlong(double d) { return fx_host_bits<long long>(d); }
FX_HOST_FN double __longlong_as_double(long long i) { return fx_host_bits<double>(i); }
FX_HOST_FN int __popc(unsigned u) { return __builtin_popcount(u); }
FX_HOST_FN int __popcll(unsigned long long u) { return __builtin_popcountll(u); }
FX_HOST_FN int __clz(int i) { return i ? __builtin_clz((unsigned)i) : 32; }
FX_HOST_FN int __clzll(long long i) { return i ? __builtin_clzll((unsigned long long)i) : 64; }
FX_HOST_FN int __ffs(int i) { return __builtin_ffs(i); }
FX_HOST_FN int __ffsll(long long i) { return __builtin_ffsll(i); }
FX_HOST_FN unsigned __brev(unsigned u) {
    u = __builtin_bswap32(u);
    u = (u >> 4 & 0x0f0f0f0fu) | (u & 0x0f0f0f0fu) << 4;
    u = (u >> 2 & 0x33333333u) | (u & 0x33333333u) << 2;
    return (u >> 1 & 0x55555555u) | (u & 0x55555555u) << 1;
}
FX_HOST_FN unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
FX_HOST_FN int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
FX_HOST_FN unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
