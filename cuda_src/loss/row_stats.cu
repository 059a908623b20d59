// Adds up the rows of statistics of c51_loss in chunks, for batches so large that one block would take too long over them.
//
// Launch: grid (ceil(B / chunk),), any block. The rows of a chunk are added in order: same bits at every block size.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/loss.h"
#include "loss/combine_stats.h"

FX_KERNEL_ANYBLOCK(row_stats) {
    int first = (int)blockIdx.x * a.chunk, last = min(first + a.chunk, a.B);
    FX_FOR(c, a.W) a.parts[(int64_t)blockIdx.x * a.W + c] = fx::combine_column(a.rows, a.W, c, first, last);
}
