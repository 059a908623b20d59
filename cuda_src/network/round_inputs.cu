// round_inputs: the bf16 operands of forward and adam_grad, made once a step from the f32 masters: parameters of the three
// passes one behind the other, so that one batched product serves all, and their inputs. round_mantissa: f32 values with
// the mantissa of TF32 or bf16, by which the package's own f32 kernels stand in for a library's tensor-core products.
//
// Launch: grid (ceil((n + m) / per_block)), (ceil(n / per_block)), any block.
#include "lib/bf16.h"
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/product.h"

FX_KERNEL_ANYBLOCK(round_inputs) {
    using namespace fx;
    const int64_t begin = (int64_t)blockIdx.x * a.per_block, left = a.n + a.m - begin;
    FX_FOR(q, (left < a.per_block ? left : a.per_block) / LANES) {
        const int64_t at = begin + (int64_t)q * LANES;
        if (at < a.n) {
            const lanes online = load_lanes(a.theta + at), target = load_lanes(a.target + at);
            store_lanes(a.w + at, online);
            store_lanes(a.w + a.n + at, online);
            store_lanes(a.w + 2 * a.n + at, target);
            const int64_t b = at - a.bias_at;
            if (b < 0 || b >= a.n_bias) continue;
            store_lanes(a.bias + b, online);
            store_lanes(a.bias + a.n_bias + b, online);
            store_lanes(a.bias + 2 * a.n_bias + b, target);
        } else {
            const int64_t i = at - a.n;
            const lanes s = load_lanes(a.x0 + i), next = load_lanes(a.x1 + i), target_next = load_lanes(a.x2 + i);
            store_lanes(a.x + i, s);
            store_lanes(a.x + a.m + i, next);
            store_lanes(a.x + 2 * a.m + i, target_next);
        }
    }
}

FX_KERNEL_ANYBLOCK(round_mantissa) {
    using namespace fx;
    const int64_t begin = (int64_t)blockIdx.x * a.per_block, left = a.n - begin;
    FX_FOR(q, (left < a.per_block ? left : a.per_block) / LANES) {
        const int64_t at = begin + (int64_t)q * LANES;
        store_lanes(a.y + at, fx::round_mantissa(load_lanes(a.x + at), a.bits));
    }
}
