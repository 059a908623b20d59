// Residual blocks x + scale f(x), f(x) = relu(x W + b) (He et al. 2016): what stands around the products of linear_forward, of
// linear_backward or of a library. scale is 1, or with stochastic depth (Huang et al. 2016) a factor a row: network/depth.cu.
//
//   residual_add        y = x + scale y, y being f(x); keeps f(x) of the pass on s      grid (ceil(passes*R*Np / per_block))
//   residual_gradient   e, the gradient of the block's output, goes on to its input (carry) and through f (y)
//                                                                                       grid (ceil(Np / GRADIENT_COLS), splits)
//
// Any block. 12 bytes and 2 flops an element each, 4 bytes more for what is kept. The order of additions in residual_gradient is that
// of gradient_rows. A factor 0 does not hide a value that is not finite: 0 * NaN is NaN.
#include "lib/bf16.h"
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/product.h"
#include "abi/residual.h"
#include "network/gradient_rows.h"

namespace {

template <class T>
FX_DEVICE void add(const T *x, T *y, T *inner, const float *scale, int passes, int rows, int columns, int per_block) {
    using namespace fx;
    const int64_t size = (int64_t)rows * columns, begin = (int64_t)blockIdx.x * per_block, left = passes * size - begin;
    FX_FOR(q, (left < per_block ? left : per_block) / LANES) {
        const int64_t at = begin + (int64_t)q * LANES;
        const lanes f = load_lanes(y + at);
        const lanes factor = splat(scale && at < size ? scale[at / columns] : 1.0f);
        if (inner && at < size) store_lanes(inner + at, f);
        store_lanes(y + at, fma(factor, f, load_lanes(x + at)));
    }
}

}  // namespace

FX_KERNEL_ANYBLOCK(residual_add) { add(a.x, a.y, a.inner, a.scale, a.passes, a.R, a.Np, a.per_block); }
FX_KERNEL_ANYBLOCK(residual_add_bf16) { add(a.x, a.y, a.inner, a.scale, a.passes, a.R, a.Np, a.per_block); }
FX_KERNEL_ANYBLOCK(residual_gradient) {
    rows_of(a.x, a.inner, a.more, a.heads, a.y, a.part, a.R, a.Np, a.splits, a.scale, a.carry);
}
FX_KERNEL_ANYBLOCK(residual_gradient_bf16) {
    rows_of(a.x, a.inner, a.more, a.heads, a.y, a.part, a.R, a.Np, a.splits, a.scale, a.carry);
}
