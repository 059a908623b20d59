// Adds up rows of statistics of c51_loss, a chunk of them a block: to one row, which publish reads, or, for batches so large
// that one block would take too long over them, to a row a chunk first.
//
// Order of the additions, the same for every block size: a chunk is cut into `segments` stretches of equal length; the rows
// of a stretch are added in ascending order, all stretches at once, and then the sums of the stretches in ascending order.
//
// Launch: grid (ceil(B / chunk),), any block (a GPU has use for segments W threads); dynamic shared memory segments W floats.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/loss.h"
#include "loss/combine_stats.h"

FX_KERNEL_ANYBLOCK(row_stats) {
    FX_DYNAMIC_SHARED(float, part);  // (segments, W)
    const int first = (int)blockIdx.x * a.chunk, last = min(first + a.chunk, a.B);
    float *sums = a.parts + (int64_t)blockIdx.x * a.W;
    fx::combine_rows(a.rows, a.W, first, last, a.segments, a.segments == 1 ? sums : part);
    if (a.segments == 1) return;
    __syncthreads();
    fx::combine_rows(part, a.W, 0, a.segments, 1, sums);
}
