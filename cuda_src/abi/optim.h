/* The optimizer: fixed-order reduction of a split gradient, and AdamW with clip and Polyak target in one pass. */

/* grad = sum of the partial gradients in a fixed order, run by run; norm_part[block] = sum of squares of the block's
 * elements. Without runs: the squares of `done` alone. */
typedef struct {
    const float *part;     //@ in f32[parts] if_any        partial gradients, at the places that the runs name
    const float *done;     //@ in f32[n]                   (n,) what is a gradient already, in runs without partial ones
    float *grad;           //@ out f32[n] optional         (n,) where the sums go; null without runs
    double *norm_part;     //@ out f64[blocks]             one a block
    const grad_run *runs;  //@ in grad_run[n_runs] if_any  ascending, without gaps, from 0 to n
    int64_t n;             //@ parameters, multiple of 16
    int64_t parts;         //@ floats of part
    int32_t n_runs;        //@ 0: all of it is in done
    int32_t blocks;        //@ = gridDim.x; block i owns elements [i*per_block, (i+1)*per_block)
    int32_t per_block;     //@ multiple of 16
    int32_t share;         //@ 1 or 8: threads of a GPU that share the partial gradients of a vector
} grad_reduce_args;

typedef struct {
    float *theta;               //@ inout f32[n]             (n,) online parameters
    float *target;              //@ inout f32[n] optional    (n,) Polyak copy; null: none is kept
    float *m;                   //@ inout f32[n]             (n,) first moment
    float *v;                   //@ inout f32[n]             (n,) second moment
    const float *grad;          //@ in f32[n]                (n,) gradient before the clip
    const double *norm_part;    //@ in f64[parts]            sums of squares, added in ascending order of a fixed tree
    const step_block *step;     //@ in step_block[1]
    optim_stats *stats;         //@ inout optim_stats[groups_n]   one a group
    const optim_group *groups;  //@ in optim_group[groups_n] optional    in ascending order of begin; null: one group
    guard_block *guard;         //@ inout guard_block[1] optional    told when the norm is not finite
    int64_t n;                  //@ parameters, multiple of 16
    int64_t n_decay;            //@ the first n_decay elements are weights: decoupled weight decay is for them alone
    int32_t parts;              //@ >= 1
    int32_t per_block;          //@ elements a block owns, multiple of 16; divides the begin of every group
    int32_t groups_n;           //@ optimizer groups, 1 without a table
    uint32_t pad0_;             //@ pad
} adam_update_args;
