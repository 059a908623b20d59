// Writes a new control_block that came by value in the arguments: a host change takes effect in stream order, so a step
// that was queued before it never sees it. Launched ungraphed, from a module of its own.
//
// Launch: one block.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/control.h"

static_assert(sizeof(control_block) == CONTROL_WORDS * sizeof(uint64_t),
              "one argument word for each word of the block");

FX_KERNEL_ANYBLOCK(apply_control) {
    FX_FOR(only, 1) {
        uint64_t *c = a.control;
        c[0] = a.w0, c[1] = a.w1, c[2] = a.w2, c[3] = a.w3, c[4] = a.w4, c[5] = a.w5, c[6] = a.w6, c[7] = a.w7;
        c[8] = a.w8, c[9] = a.w9, c[10] = a.w10, c[11] = a.w11, c[12] = a.w12, c[13] = a.w13, c[14] = a.w14,
        c[15] = a.w15, c[16] = a.w16;
    }
}
