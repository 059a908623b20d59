/* Residual blocks x + scale f(x), f = linear + ReLU (He et al. 2016), and the masks of stochastic depth: docs/step/stochastic_depth.md.
 * Np: multiple of 16. */

/* y = x + scale y: f(x) comes in, the block's output goes out. */
typedef struct {
    const float *x;        //@ in f32[passes*R*Np]       (passes, R, Np) input of the block
    float *y;              //@ inout f32[passes*R*Np]    (passes, R, Np)
    float *inner;          //@ out f32[R*Np] optional    (R, Np) f(x) of pass 0, for the backward pass
    const float *scale;    //@ in f32[R] optional        (R,) of pass 0, all others take 1; null: 1
    int32_t passes;        //@ 1 to 3
    int32_t R;             //@ rows
    int32_t Np;            //@ columns
    int32_t per_block;     //@ elements a block owns, multiple of 16
} residual_add_args;

typedef struct {
    const uint16_t *x;     //@ in bf16[passes*R*Np]       (passes, R, Np) input of the block
    uint16_t *y;           //@ inout bf16[passes*R*Np]    (passes, R, Np)
    uint16_t *inner;       //@ out bf16[R*Np] optional    (R, Np) f(x) of pass 0
    const float *scale;    //@ in f32[R] optional         (R,) of pass 0
    int32_t passes;        //@ 1 to 3
    int32_t R;             //@ rows
    int32_t Np;            //@ columns
    int32_t per_block;     //@ elements a block owns, multiple of 16
} residual_add_bf16_args;

/* carry = x + sum of more; y = scale * carry where inner > 0 (or is NaN), else 0; part[z] = column sums of y over the rows of split z.
 * y may be x. */
typedef struct {
    const float *x;        //@ in f32[R*Np]               (R, Np)
    const float *more;     //@ in f32[heads*R*Np] if_any  (heads, R, Np) what else adds to the gradient of the block's output
    const float *inner;    //@ in f32[R*Np]               (R, Np) f(x) as the forward pass kept it
    const float *scale;    //@ in f32[R] optional         (R,); null: 1
    float *carry;          //@ out f32[R*Np] optional     (R, Np) gradient of the block's output
    float *y;              //@ out f32[R*Np]              (R, Np) gradient of f's output before its ReLU
    float *part;           //@ out f32[splits*Np] optional    (splits, Np)
    int32_t R;             //@ rows
    int32_t Np;            //@ columns
    int32_t splits;        //@ = gridDim.y
    int32_t heads;         //@ of more
} residual_gradient_args;

typedef struct {
    const uint16_t *x;      //@ in bf16[R*Np]              (R, Np)
    const float *more;      //@ in f32[heads*R*Np] if_any  (heads, R, Np)
    const uint16_t *inner;  //@ in bf16[R*Np]              (R, Np)
    const float *scale;     //@ in f32[R] optional         (R,)
    float *carry;           //@ out f32[R*Np] optional     (R, Np)
    uint16_t *y;            //@ out bf16[R*Np]             (R, Np)
    float *part;            //@ out f32[splits*Np] optional    (splits, Np)
    int32_t R;              //@ rows
    int32_t Np;             //@ columns
    int32_t splits;         //@ = gridDim.y
    int32_t heads;          //@ of more
} residual_gradient_bf16_args;

/* scale[l][r] = b/(1 - p_l), b = 1 with chance 1 - p_l, p_l = drop (l + 1)/L. Grid (1,), any block. */
typedef struct {
    const step_block *step;  //@ in step_block[1]    seed, rng_step
    float *scale;            //@ out f32[L*R]        (L, R)
    float *kept;             //@ out f32[1]          share of the (block, row) pairs that were kept
    int32_t L;               //@ residual blocks
    int32_t R;               //@ rows
    float drop;              //@ p_L, below 1
    uint32_t pad0_;          //@ pad
} depth_masks_args;
