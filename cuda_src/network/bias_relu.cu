// bias_relu, bias_relu_bf16: y = act(y + b) in place, behind a product of a library that refused to fuse it.
//
// Launch: grid (ceil(R * Np / per_block)), any block.
#include "lib/bf16.h"
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/product.h"

namespace {

template <class T>
FX_DEVICE void add_bias(T *y, const T *bias, int64_t n, int columns, int per_block, bool activate) {
    using namespace fx;
    const int64_t begin = (int64_t)blockIdx.x * per_block, left = n - begin;
    FX_FOR(q, (left < per_block ? left : per_block) / LANES) {
        const int64_t at = begin + (int64_t)q * LANES;
        const lanes v = load_lanes(y + at) + load_lanes(bias + at % columns);
        store_lanes(y + at, activate ? relu(v) : v);
    }
}

}  // namespace

FX_KERNEL_ANYBLOCK(bias_relu) { add_bias(a.y, a.bias, (int64_t)a.R * a.Np, a.Np, a.per_block, a.relu != 0); }
FX_KERNEL_ANYBLOCK(bias_relu_bf16) { add_bias(a.y, a.bias, (int64_t)a.R * a.Np, a.Np, a.per_block, a.relu != 0); }
