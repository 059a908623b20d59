/* Advantage heads beside the network's own: cuda_src/heads/ensemble_*.cu. Shapes as in loss.h; H heads in all, E = H - 1 of them
 * beside the network's, Mp floats of a row of theirs: E * S * N advantage atoms, head by head, then zeros. */

/* Columns of a row; all but the last are reported as means. */
#define ENSEMBLE_LOSS 0         /* mean of the heads' weighted losses, plus lambda * similarity */
#define ENSEMBLE_CE 1           /* cross-entropy, mean over heads and branches */
#define ENSEMBLE_DISAGREEMENT 2 /* deviation of Q over all H heads, mean over the actions */
#define ENSEMBLE_SIMILARITY 3   /* of the H heads' centred advantages, mean over pairs, 0 to 1 */
#define ENSEMBLE_NORM2 4        /* sum of squares of the row's gradient by the logits, over all H heads */
#define ENSEMBLE_COLUMNS 5

#define ENSEMBLE_THREADS 768      /* most of a block of ensemble_loss, by its registers */
#define ENSEMBLE_WIDE_THREADS 512 /* and of ensemble_loss_wide */

/* a*, the action at s' by the mean of all heads. */
typedef struct {
    const float *logits;      //@ in f32[R*Np]           (R, Np) head output of the network
    const float *more;        //@ in f32[R*Mp]           (R, Mp)
    const step_block *step;   //@ in step_block[1]       v_min, delta_z
    float *values;            //@ out f32[R*S]           (R, S) 0 for a*, -infinity for the other actions
    int32_t *next_action;     //@ out i32[R*K]           (R, K) a*
    uint64_t branch_sizes;    //@ actions of branch b in bits [8 b, 8 b + 8)
    int32_t R;                //@ rows = gridDim.x
    int32_t K;                //@ branches
    int32_t S;                //@ actions over all branches
    int32_t N;                //@ atoms
    int32_t Np;               //@ floats of a head row
    int32_t Mp;               //@ floats of a row of the heads beside the network's
    int32_t E;                //@ heads beside the network's
    uint32_t pad0_;           //@ pad
} ensemble_values_args;
typedef ensemble_values_args ensemble_values_wide_args;

typedef struct {
    const float *logits;        //@ in f32[3*R*Np]        (3, R, Np) of the network: online(s), online(s'), target(s')
    const float *more;          //@ in f32[3*B*Mp]        (3, B, Mp) of the heads beside its own, the same passes
    const int32_t *action;      //@ in i32[B]             mixed radix, branch 0 slowest
    const int32_t *next_action; //@ in i32[B*K]           (B, K) a*, by the mean of all heads
    const float *ret;           //@ in f32[B]             n-step return, normalized
    const float *discount;      //@ in f32[B]             gamma^m, 0 when terminated
    const float *priority;      //@ in f32[B]             P_i as drawn
    const step_block *step;     //@ in step_block[1]
    float *part;                //@ out f32[B*Np]         (B, Np) gradient of the network's head output, pads zero
    float *dmore;               //@ out f32[B*Mp]         (B, Mp) gradient of the output of the heads beside it, pads zero
    float *target;              //@ out f32[B*E*K*N] optional   (B, E, K, N) projected targets, before label smoothing
    float *rows;                //@ out f32[B*5]          (B, ENSEMBLE_COLUMNS)
    guard_block *guard;         //@ inout guard_block[1]
    uint64_t branch_sizes;      //@ actions of branch b in bits [8 b, 8 b + 8)
    float branch_scale;         //@ 1/K: mean over the branches; 1: sum
    float diversity;            //@ lambda, weight of the similarity
    float spread;               //@ sigma, in atoms
    int32_t B;                  //@ rows = gridDim.x
    int32_t R;                  //@ rows of a pass of logits, of which the first B have a loss
    int32_t K;                  //@ branches
    int32_t S;                  //@ actions over all branches
    int32_t N;                  //@ atoms
    int32_t Np;                 //@ floats of a head row
    int32_t Mp;                 //@ floats of a row of the heads beside the network's
    int32_t E;                  //@ heads beside the network's
    uint32_t pad0_;             //@ pad
} ensemble_loss_args;
typedef ensemble_loss_args ensemble_loss_wide_args;

/* dmore *= scale, scale so that the norm of part and dmore is at most their share of the gradient budget. */
typedef struct {
    const float *rows;       //@ in f32[B*5]            (B, ENSEMBLE_COLUMNS)
    const step_block *step;  //@ in step_block[1]       grad_budget; 0: no bound
    float *dmore;            //@ inout f32[B*Mp]        (B, Mp)
    float *metrics;          //@ out f32[5]             means over the rows; the last: scale
    float share;             //@ of the budget
    int32_t B;               //@ rows
    int32_t Mp;              //@ floats of a row of the heads beside the network's, multiple of 16
    uint32_t pad0_;          //@ pad
} ensemble_scale_args;

/* dlogits += scale * part, the same scale. */
typedef struct {
    const float *part;       //@ in f32[B*Np]           (B, Np)
    const float *rows;       //@ in f32[B*5]            (B, ENSEMBLE_COLUMNS)
    const step_block *step;  //@ in step_block[1]
    float *dlogits;          //@ inout f32[B*Np]        (B, Np)
    float share;             //@ of the budget
    int32_t B;               //@ rows
    int32_t Np;              //@ floats of a head row, multiple of 16
    uint32_t pad0_;          //@ pad
} ensemble_blend_args;
