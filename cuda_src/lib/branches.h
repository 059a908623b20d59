// The factored action: K <= 8 branches of up to 255 actions, sizes packed 8 bits each, branch 0 slowest in the mixed radix.
#pragma once
#include "lib/kernel.h"

namespace fx {

constexpr int MAX_BRANCHES = 8;

FX_DEVICE int branch_size(uint64_t sizes, int b) { return (int)(sizes >> (8 * b) & 255u); }

// Number of actions of the branches before b: where branch b begins among all S actions.
FX_DEVICE int branch_first(uint64_t sizes, int b) {
    int first = 0;
#pragma unroll 1
    for (int i = 0; i < b; ++i) first += branch_size(sizes, i);
    return first;
}

// Branch of the flat action s in [0, S).
FX_DEVICE int branch_of(uint64_t sizes, int s) {
    int b = 0;
    for (int size = branch_size(sizes, 0); s >= size; size = branch_size(sizes, ++b)) s -= size;
    return b;
}

// Choice of branch b in the mixed-radix action of K branches: one division and one remainder, however many branches.
FX_DEVICE int branch_action(uint64_t sizes, int K, int action, int b) {
    uint32_t stride = 1;
#pragma unroll 1
    for (int i = b + 1; i < K; ++i) stride *= (uint32_t)branch_size(sizes, i);
    return (int)((uint32_t)action / stride % (uint32_t)branch_size(sizes, b));
}

}  // namespace fx
