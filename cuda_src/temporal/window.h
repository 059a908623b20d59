// The states that a window holds: the last `length` of its L, the present one at least. A window that was never written has length
// 0; it is one of the present state alone, since a softmax or a scan over nothing would be NaN.
#pragma once
#include "lib/kernel.h"

namespace fx {

// Position of the first state held; a length outside 1 to L counts as the nearest that is not.
FX_DEVICE int first_held(int L, int length) {
    return L - max(1, min(length, L));
}

}  // namespace fx
