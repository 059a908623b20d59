// gradient_rows, gradient_rows_bf16, gradient_to_bf16: what stands between a library's products of the backward pass, in
// one pass over a gradient (R, Np): what other heads add, the derivative of ReLU, the rounding to bf16, and the column sums
// that db is made of.
//
// Launch: grid (ceil(Np / GRADIENT_COLS), splits), any block; a block owns GRADIENT_COLS columns of one split's rows.
// Order of additions: network/gradient_rows.h. grad_reduce adds the splits.
#include "lib/bf16.h"
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/product.h"
#include "network/gradient_rows.h"

FX_KERNEL_ANYBLOCK(gradient_rows) { rows_of(a.x, a.h, a.more, a.heads, a.y, a.part, a.R, a.Np, a.splits); }
FX_KERNEL_ANYBLOCK(gradient_rows_bf16) { rows_of(a.x, a.h, a.more, a.heads, a.y, a.part, a.R, a.Np, a.splits); }
FX_KERNEL_ANYBLOCK(gradient_to_bf16) {
    rows_of<float, uint16_t>(a.x, nullptr, nullptr, 0, a.y, a.part, a.R, a.Np, a.splits);
}
