// The lowest address at which memory is no longer what it was: after each launch of the node-by-node mode, over everything
// that the launch was not given to write (foxhunt_rt/graph/write_check.py).
//
// Launch: grid (parts of a range, ranges), any block. The minimum does not depend on the order of the atomics.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/debug.h"

FX_KERNEL_ANYBLOCK(find_change) {
    const uint64_t *range = a.ranges + 3 * (uint64_t)blockIdx.y;
    const uint64_t now = range[0], before = range[1], bytes = range[2];
    const uint64_t unit = (now | before | bytes) & 3 ? 1 : 4;
    const uint64_t count = bytes / unit, part = (count + gridDim.x - 1) / gridDim.x;
    const uint64_t start = part * blockIdx.x;
    const uint64_t own = start >= count ? 0 : (count - start < part ? count - start : part);
    FX_FOR(i, own) {
        const uint64_t at = unit * (start + (uint64_t)i);
        bool same;
        if (unit == 4) {
            const uint32_t old = before ? *(const uint32_t *)(before + at) : a.pattern;
            same = *(const uint32_t *)(now + at) == old;
        } else {
            const uint8_t old = before ? *(const uint8_t *)(before + at) : (uint8_t)a.pattern;
            same = *(const uint8_t *)(now + at) == old;
        }
        if (!same) {
            uint64_t byte = at;  // of a word, its first byte that differs
            while (*(const uint8_t *)(now + byte) == (before ? *(const uint8_t *)(before + byte) : (uint8_t)a.pattern))
                ++byte;
            atomicMin((unsigned long long *)a.first, (unsigned long long)(now + byte));
        }
    }
}
