/* Linear layers: forward with a fused bias and ReLU, and everything the backward pass needs of one layer in one launch.
 * Weights are [Kp][Np], input-major; K of the Kp rows are real, the rest and all pads hold zeros. Kp, Np: multiples of
 * 16. */

/* Largest region of outputs that one block owns; a launch may choose a smaller one, a multiple of 4 by one of 16. */
#define LINEAR_MAX_ROWS 64
#define LINEAR_BIG_ROWS 32 /* blocks of so many rows have 4 x 4 results a thread on a GPU, of twice as many 8 x 4, smaller ones 2 x 4 */
#define LINEAR_MAX_COLS 64
#define LINEAR_MAX_DX 1024

/* y[p] = act(x_p W_p + b_p) for p < passes: the network applied to up to three (input, parameters) pairs at once. With
 * `residual` y[p] += x_p W_p + b_p. */
typedef struct {
    const float *x0;           //@ in f32[R*Kp]             (R, Kp) input of pass 0
    const float *x1;           //@ in f32[(passes+1)/3*R*Kp] if_any     (R, Kp) input of pass 1; null when passes < 2
    const float *x2;           //@ in f32[passes/3*R*Kp] if_any         (R, Kp) input of pass 2; null when passes < 3
    const float *w;            //@ in f32[Kp*Np]            (Kp, Np) weights of passes 0 and 1
    const float *bias;         //@ in f32[Np]               (Np,)
    const float *w_target;     //@ in f32[passes/3*Kp*Np] if_any        (Kp, Np) weights of pass 2; null when passes < 3
    const float *bias_target;  //@ in f32[passes/3*Np] if_any           (Np,) the same
    float *y;                  //@ inout f32[passes*R*Np]   (passes, R, Np); read with residual alone
    int32_t passes;            //@ 1 to 3
    int32_t R;                 //@ rows
    int32_t K;                 //@ input width without padding
    int32_t Kp;                //@ input width
    int32_t Np;                //@ output width
    int32_t relu;              //@ 0: linear, 1: max(y, 0), NaN stays NaN
    int32_t residual;          //@ 1: added to what y holds
    int32_t block_rows;        //@ rows of outputs a block owns
    int32_t block_cols;        //@ columns
    uint32_t pad0_;            //@ pad
} linear_forward_args;

#define PAIR_ROWS 8   /* rows of a block of linear_pair */
#define PAIR_WIDTH 64 /* most inputs and outputs of its layers, padded */

/* y[p] = relu(x_p W_p + b_p), y2[p] = relu(y[p] W2_p + b2_p) for p < passes: two layers of at most PAIR_WIDTH. */
typedef struct {
    const float *x0;            //@ in f32[R*Kp]             (R, Kp) input of pass 0
    const float *x1;            //@ in f32[(passes+1)/3*R*Kp] if_any     (R, Kp) input of pass 1; null when passes < 2
    const float *x2;            //@ in f32[passes/3*R*Kp] if_any         (R, Kp) input of pass 2; null when passes < 3
    const float *w;             //@ in f32[Kp*Mp]            (Kp, Mp) weights of passes 0 and 1
    const float *bias;          //@ in f32[Mp]               (Mp,)
    const float *w_target;      //@ in f32[passes/3*Kp*Mp] if_any        (Kp, Mp) weights of pass 2; null when passes < 3
    const float *bias_target;   //@ in f32[passes/3*Mp] if_any           (Mp,) the same
    const float *w2;            //@ in f32[Mp*Np]            (Mp, Np) of the second layer
    const float *bias2;         //@ in f32[Np]               (Np,)
    const float *w2_target;     //@ in f32[passes/3*Mp*Np] if_any        (Mp, Np)
    const float *bias2_target;  //@ in f32[passes/3*Np] if_any           (Np,)
    float *y;                   //@ out f32[passes*R*Mp]     (passes, R, Mp)
    float *y2;                  //@ out f32[passes*R*Np]     (passes, R, Np)
    int32_t passes;             //@ 1 to 3
    int32_t R;                  //@ rows
    int32_t K;                  //@ input width without padding
    int32_t Kp;                 //@ input width
    int32_t Mp;                 //@ width between the layers, at most PAIR_WIDTH
    int32_t Np;                 //@ output width, at most PAIR_WIDTH
} linear_pair_args;

/* dw[z] = x_z^T dy_z, db[z] = column sums of dy_z over the rows of split z; dx = (dy W^T + sum of dx_more), with relu
 * where x > 0. */
typedef struct {
    const float *x;        //@ in f32[R*Kp]              (R, Kp) input of the layer, as the forward pass kept it
    const float *dy;       //@ in f32[R*Np]              (R, Np) gradient of the layer's output before its activation
    const float *w;        //@ in f32[Kp*Np] optional    (Kp, Np); null with dx
    float *dw;             //@ out f32[(splits-1)*split_stride+Kp*Np]   (splits, Kp, Np)
    float *db;             //@ out f32[(splits-1)*split_stride+Np]      (splits, Np)
    float *dx;             //@ out f32[R*Kp] optional    (R, Kp); null for the first layer, unless a block stands before it
    double *norm_part;     //@ out f64[dw_blocks] optional    sum of squares by block; null when splits > 1
    const float *dx_more;  //@ in f32[more*R*Kp] if_any      (more, R, Kp) what other heads add to the gradient of x
    int64_t split_stride;  //@ floats between the gradients of two splits
    int32_t R;             //@ rows
    int32_t K;             //@ input width without padding
    int32_t Kp;            //@ input width
    int32_t Np;            //@ output width
    int32_t splits;        //@ the rows are cut into so many runs, each with its own partial gradient
    int32_t dw_blocks;     //@ blocks of one split that make dw and db; the dx blocks come after splits*dw_blocks
    int32_t block_rows;    //@ rows of dw a block owns
    int32_t block_cols;    //@ columns of dw, of db too
    int32_t dx_rows;       //@ rows of dx a block owns, multiple of 4
    int32_t dx_cols;       //@ columns, multiple of 8 that divides Kp; dx_rows*dx_cols at most LINEAR_MAX_DX
    int32_t more;          //@ gradients in dx_more, added in ascending order; 0 without dx
    int32_t relu;          //@ 1: x is the output of a ReLU, through which dx goes back; 0: x is a state
} linear_backward_args;

#define PAIR_GRADIENT_ROWS 64 /* most rows of linear_backward_pair */
#define PAIR_GRADIENT_COLS 8  /* columns of dw0 that one of its blocks owns */

/* The gradients of both layers of a linear_pair: dw = x^T dy and db as in linear_backward, and with e = dy W^T where x > 0, which
 * stays in the blocks, dw0 = x0^T e and db0 the column sums of e. */
typedef struct {
    const float *x0;     //@ in f32[R*Kp]    (R, Kp) input of the first layer
    const float *x;      //@ in f32[R*Mp]    (R, Mp) output of the first layer, after its ReLU
    const float *dy;     //@ in f32[R*Np]    (R, Np) gradient of the second layer's output before its activation
    const float *w;      //@ in f32[Mp*Np]   (Mp, Np) weights of the second layer
    float *dw0;          //@ out f32[Kp*Mp]  (Kp, Mp)
    float *db0;          //@ out f32[Mp]
    float *dw;           //@ out f32[Mp*Np]  (Mp, Np)
    float *db;           //@ out f32[Np]
    double *norm_part;   //@ out f64[dw_blocks+Mp/8]   sum of squares by block
    int32_t R;           //@ rows, at most PAIR_GRADIENT_ROWS
    int32_t K;           //@ input width without padding
    int32_t Kp;          //@ input width, at most PAIR_WIDTH
    int32_t M;           //@ width between the layers without padding
    int32_t Mp;          //@ width between the layers, at most PAIR_WIDTH
    int32_t Np;          //@ output width, at most PAIR_WIDTH
    int32_t dw_blocks;   //@ blocks that make dw and db; one for each PAIR_GRADIENT_COLS columns of dw0 come after them
    int32_t block_rows;  //@ rows of dw a block owns
    int32_t block_cols;  //@ columns of dw, of db too
    uint32_t pad0_;      //@ pad
} linear_backward_pair_args;
