/* Distributional loss: cuda_src/loss. Shapes: B rows, K branches (1 to 8), S actions over all branches, N atoms (2 to 256),
 * Np floats of a head row: N value atoms, then S * N advantage atoms, then zeros. */

/* Columns of one row of statistics; the mean projected target (N floats) follows them. Columns 0 and 1 combine by minimum
 * and maximum, all others by addition. */
#define STAT_Q_MIN 0
#define STAT_Q_MAX 1
#define STAT_LOSS 2         /* importance-weighted blend */
#define STAT_CE 3           /* cross-entropy, mean over the branches */
#define STAT_MSE 4          /* (Q - y)^2, mean over the branches */
#define STAT_TD_ERROR 5     /* |Q - y|, mean over the branches */
#define STAT_Q 6            /* Q of the actions taken, mean over the branches */
#define STAT_TARGET 7       /* y, mean over the branches */
#define STAT_WEIGHT 8       /* importance weight */
#define STAT_EDGE_MASS 9    /* target mass on the first and last atom, mean over the branches */
#define STAT_SPIKES 10      /* share of the branches whose target is a spike; 0 on terminal rows */
#define STAT_NON_TERMINAL 11
#define STAT_CE_NORM2 12    /* sum of squares of the cross-entropy part of dlogits, blended and weighted */
#define STAT_MSE_NORM2 13   /* the same of the expected-value part */
#define STAT_Q_CLIPPED 14   /* branches with |Q| above q_clip */
#define STATS 16

#define C51_NARROW 64         /* most atoms of c51_loss: two a lane; c51_loss_wide takes more */
#define C51_STAGE_FLOATS 6144 /* largest 3*Np of c51_loss, which has the row's logits in shared memory; c51_loss_wide reads them in place */

typedef struct {
    const float *logits;      //@ in f32[3*R*Np]          (3, R, Np) head outputs: online(s), online(s'), target(s')
    const int32_t *action;    //@ in i32[B]               mixed radix, branch 0 slowest
    const float *ret;         //@ in f32[B]               n-step return, normalized
    const float *discount;    //@ in f32[B]               gamma^m, 0 when terminated
    const float *priority;    //@ in f32[B]               P_i as drawn
    const float *next_values; //@ in f32[B*S] optional    (B, S) expected returns at s' of other heads, which choose a* too
    const step_block *step;   //@ in step_block[1]
    float *ce_grad;           //@ out f32[B*K*N] optional  (B, K, N) dloss/dlogits, cross-entropy part, before the budget
    float *mse_grad;          //@ out f32[B*K*N] optional  (B, K, N) the same, expected-value part
    float *dlogits;           //@ out f32[B*Np] optional  (B, Np) head-output gradient: when there is no budget
    float *td_error;          //@ out f32[B]              delta_i >= 0
    int32_t *next_action;     //@ out i32[B*K]            (B, K) a*: greedy action of the online network at s'
    float *target;            //@ out f32[B*K*N] optional  (B, K, N) projected target, before label smoothing
    float *rows;              //@ out f32[B*W]            (B, W) statistics
    guard_block *guard;       //@ inout guard_block[1]
    uint64_t branch_sizes;    //@ actions of branch b in bits [8 b, 8 b + 8)
    float branch_scale;       //@ 1/K: mean over the branches; 1: sum
    int32_t B;                //@ rows = gridDim.x
    int32_t R;                //@ rows of a pass, of which the first B have a loss
    int32_t K;                //@ branches
    int32_t S;                //@ actions over all branches
    int32_t N;                //@ atoms
    int32_t Np;               //@ floats of a head row, multiple of 16
    int32_t W;                //@ STATS + N
} c51_loss_args;

typedef c51_loss_args c51_loss_wide_args; /* beyond the limits of c51_loss */

typedef struct {
    const float *rows;        //@ in f32[B*W]                 (B, W)
    float *parts;             //@ out f32[(B+chunk-1)/chunk*W]  (gridDim.x, W)
    int32_t B;                //@ rows
    int32_t W;                //@ STATS + N
    int32_t chunk;            //@ rows of one block
    int32_t segments;         //@ a block adds its rows up in so many segments at once
} row_stats_args;

typedef struct {
    const float *ce_grad;     //@ in f32[B*K*N]    (B, K, N)
    const float *mse_grad;    //@ in f32[B*K*N]    (B, K, N)
    const float *rows;        //@ in f32[R*W]      (R, W) statistics: of the rows, or of chunks of them
    const step_block *step;   //@ in step_block[1]
    float *dlogits;           //@ out f32[B*Np]    (B, Np) pads zero
    const int32_t *action;    //@ in i32[B]
    uint64_t branch_sizes;    //@ actions of branch b in bits [8 b, 8 b + 8)
    int32_t B;                //@ rows = gridDim.x
    int32_t K;                //@ branches
    int32_t S;                //@ actions over all branches
    int32_t N;                //@ atoms
    int32_t Np;               //@ floats of a head row
    int32_t R;                //@ rows of statistics
    int32_t W;                //@ STATS + N
    uint32_t pad0_;           //@ pad
} budget_blend_args;
