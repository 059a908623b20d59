// return_head: predicts the n-step return from the trunk's output, loss = coefficient * mean 0.5 (x w + b - R)^2.
// One block: error of each row first, then the gradients, each element summed by one thread in ascending order.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/return_head.h"

FX_KERNEL_ANYBLOCK(return_head) {
    FX_DYNAMIC_SHARED(float, error);  // (B,) prediction - label
    FX_FOR(r, a.B) {
        float y = a.bias[0];
        for (int k = 0; k < a.Hp; ++k) y += a.x[r * a.Hp + k] * a.w[k * 16];
        error[r] = y - a.ret[r];
    }
    __syncthreads();
    const float scale = a.coefficient / (float)a.B;
    float squares = fx::block_sum(a.B, [&](int r) { return error[r] * error[r]; });
    FX_FOR(only, 1) a.mse[0] = squares / (float)a.B;
    FX_FOR(o, a.B * a.Hp) a.dx[o] = scale * error[o / a.Hp] * a.w[o % a.Hp * 16];
    FX_FOR(o, (a.Hp + 1) * 16) {  // rows of dw, then the bias; columns 1 to 15 are padding
        const int k = o / 16;
        float sum = 0.0f;
        if (o % 16 == 0)
            for (int r = 0; r < a.B; ++r) sum += error[r] * (k < a.Hp ? a.x[r * a.Hp + k] : 1.0f);
        (k < a.Hp ? a.dw + k * 16 : a.dbias)[o % 16] = scale * sum;
    }
}
