// Copies from global to shared memory that pass no register, 16 bytes a thread: any number are in flight at once, so a
// block pays one trip to L2 however much it stages. GPU only; the host reads its operands in place.
#pragma once
#include "lib/kernel.h"

#ifdef FX_GPU
namespace fx {

FX_DEVICE void copy_async(float *shared, const float *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global));
}
FX_DEVICE void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace fx
#endif
