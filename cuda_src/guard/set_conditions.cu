// Sets the handles of conditional nodes: which gated children run in this step, and whether one more step follows in this
// launch. All but set_loop_steps exist in the composed parent only: a handle that is set from a launch outside its graph is
// an illegal address (measured, H200). Ungraphed runs take the same decisions on the host, from the same words.
//
// Launch: one block, one thread works.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/conditional.h"

namespace {

FX_DEVICE bool raised(const uint32_t *word, int words, uint64_t clear, uint64_t mask) {
    uint64_t value = word[0];
    if (words > 1) value |= (uint64_t)word[1] << 32;
    return ((value ^ clear) & mask) != 0;
}

FX_DEVICE void set(uint64_t handle, bool on) { cudaGraphSetConditional((cudaGraphConditionalHandle)handle, on ? 1u : 0u); }

}  // namespace

// IF nodes: one launch for all that go by the same word.
FX_KERNEL_ANYBLOCK(set_conditions) {
    FX_FOR(only, 1) {
        for (int i = 0; i < a.count; ++i) set(a.handle[i], raised(a.word, a.words, a.clear, a.mask[i]));
    }
}

// Before the WHILE node: latches how many steps this launch runs. None once the stop word is raised, so that launches that
// were queued behind the one that raised it do nothing.
FX_KERNEL_ANYBLOCK(begin_loop) {
    FX_FOR(only, 1) {
        a.loop->left = a.loop->steps;
        set(a.handle, a.loop->left > 0 && !(a.stop && raised(a.stop, a.words, a.clear, a.mask)));
    }
}

// The last node of the WHILE node's body.
FX_KERNEL_ANYBLOCK(next_step) {
    FX_FOR(only, 1) {
        const uint32_t left = a.loop->left - 1;
        a.loop->left = left;
        set(a.handle, left > 0 && !(a.stop && raised(a.stop, a.words, a.clear, a.mask)));
    }
}

// Ungraphed, in stream order: launches that are queued already keep their number of steps.
FX_KERNEL_ANYBLOCK(set_loop_steps) {
    FX_FOR(only, 1) { a.loop->steps = a.steps; }
}
