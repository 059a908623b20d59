// Bias correction of Adam's moments (Kingma & Ba 2015, section 3).
#pragma once
#include "lib/kernel.h"

namespace fx {

// 1 - beta^t without the cancellation of small t: beta2 = 0.999 would lose four digits at t = 1.
FX_DEVICE float bias_correction(float beta, uint64_t t) {
    return -expm1f((float)t * logf(beta));
}

}  // namespace fx
