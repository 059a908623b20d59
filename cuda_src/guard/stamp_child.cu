// The end of a child on the device's clock, into a mapped ring: a side branch of the parent, so no child waits for it. One thread.
#include "lib/kernel.h"
#include "abi/types.h"
#include "abi/timing.h"

FX_KERNEL(stamp_child) {
    uint32_t k = a.count[0];
    a.times[(uint64_t)(k % (uint32_t)a.capacity) * (uint64_t)a.width + (uint64_t)a.column] = fx::globaltimer();
    a.count[0] = k + 1;
}
