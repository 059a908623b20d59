// The guard: how a kernel reports that something is impossible, without stopping, printing or synchronizing.
//
// A fault is one 64-bit key, child | check | element | bits of the value, claimed by an integer atomicMin. So the winner
// does not depend on the order of the threads, and the key carries its own payload: there is no second write that could
// race. The step's last node copies the key into the record that the host reads.
//
//     fx::guard_raise(a.guard, GUARD_DDQN, CHECK_NON_FINITE, row, q);
//
// Call it only when the check has failed (the common path then costs one comparison). Comparisons must be written so that
// NaN fails them: if (!(fabsf(x) <= limit)), never if (fabsf(x) > limit).
#pragma once
#include "lib/kernel.h"  // and abi/types.h before this file (ABI headers have no include guard)

namespace fx {

FX_DEVICE void guard_raise(guard_block *guard, uint32_t child, uint32_t check, uint32_t element, float value) {
    element = element < 0xffffffu ? element : 0xffffffu;  // larger ones saturate: the child and the check still hold
    unsigned long long key = ((unsigned long long)(child << 28 | check << 24 | element) << 32) | __float_as_uint(value);
    atomicMin((unsigned long long *)&guard->key, key);
}

FX_DEVICE bool finite(float x) { return fabsf(x) <= 3.402823466e+38f; }

// |x| must be at most limit; a NaN or infinity is reported as such, anything else as `check`.
FX_DEVICE void guard_bound(guard_block *guard, uint32_t child, uint32_t check, uint32_t element, float x, float limit) {
    if (!(fabsf(x) <= limit)) guard_raise(guard, child, finite(x) ? check : CHECK_NON_FINITE, element, x);
}
FX_DEVICE void guard_finite(guard_block *guard, uint32_t child, uint32_t element, float x) {
    if (!finite(x)) guard_raise(guard, child, CHECK_NON_FINITE, element, x);
}
// A projected target sums to 1 within 1e-6.
FX_DEVICE void guard_mass(guard_block *guard, uint32_t child, uint32_t element, float mass) {
    if (!(fabsf(mass - 1.0f) <= 1e-6f))
        guard_raise(guard, child, finite(mass) ? CHECK_MASS : CHECK_NON_FINITE, element, mass);
}
// A log-probability is at most 0, within 1e-6.
FX_DEVICE void guard_log_probability(guard_block *guard, uint32_t child, uint32_t element, float log_p) {
    if (!(log_p <= 1e-6f))
        guard_raise(guard, child, finite(log_p) ? CHECK_LOG_PROBABILITY : CHECK_NON_FINITE, element, log_p);
}
// The probabilities whose logarithms a loss uses sum to 1. In f32 each is off by some 2^-24 (|log sum| + |log p|), in bf16 or
// f16 by a thousand times that: the check tells the two apart (known failure K11: log-probabilities were kept in bf16).
FX_DEVICE void guard_probabilities(guard_block *guard, uint32_t child, uint32_t element, float sum, float log_sum) {
    if (!(fabsf(sum - 1.0f) <= 1e-4f + 1.2e-7f * fabsf(log_sum)))
        guard_raise(guard, child, finite(sum) ? CHECK_PROBABILITIES : CHECK_NON_FINITE, element, sum);
}
// The largest |Q| that a softmax over a support with max|z| can give, with room for rounding.
FX_DEVICE float q_limit(float z_max) {
    return z_max * 1.00001f;
}

}  // namespace fx
