/* Auxiliary losses on the C51 heads: cuda_src/heads. Shapes as in loss.h. */

/* Columns of a row of an auxiliary loss. */
#define AUX_LOSS 0
#define AUX_NORM2 1 /* sum of squares of the row's gradient by the logits */
#define AUX_COLUMNS 2

/* Losses of which a block takes a row of the head's output, a warp a branch at a time. */
#define HEAD_NARROW 64   /* most atoms: two a lane, and the row's logits in shared memory; kernels named *_wide take more */
#define HEAD_THREADS 256 /* a block of one head: a warp for each of at most eight branches */

typedef struct {
    const float *logits;     //@ in f32[B*Np]           (B, Np) head output of the online network on s
    const int32_t *action;   //@ in i32[B]              mixed radix, branch 0 slowest
    const step_block *step;  //@ in step_block[1]       v_min, delta_z
    float *part;             //@ out f32[B*Np]          (B, Np) gradient of the head output, pads zero
    float *rows;             //@ out f32[B*2]           (B, AUX_COLUMNS)
    uint64_t branch_sizes;   //@ actions of branch b in bits [8 b, 8 b + 8)
    float weight;            //@ alpha_cql times the branch scale
    int32_t B;               //@ rows = gridDim.x
    int32_t K;               //@ branches
    int32_t S;               //@ actions over all branches
    int32_t N;               //@ atoms
    int32_t Np;              //@ floats of a head row
} cql_gradient_args;
typedef cql_gradient_args cql_gradient_wide_args;

/* dlogits += scale * part, scale so that the part's norm is at most its share of the gradient budget. */
typedef struct {
    const float *part;       //@ in f32[B*Np]           (B, Np)
    const float *rows;       //@ in f32[B*2]            (B, AUX_COLUMNS)
    const step_block *step;  //@ in step_block[1]       grad_budget; 0: no bound
    float *dlogits;          //@ inout f32[B*Np]        (B, Np)
    float *loss;             //@ out f32[1]             mean over the rows
    float *scale;            //@ out f32[1]             factor applied
    float share;             //@ of the budget
    int32_t B;               //@ rows
    int32_t Np;              //@ floats of a head row, multiple of 16
    uint32_t pad0_;          //@ pad
} aux_blend_args;

/* IQL (Kostrikov 2022): V on the trunk's output by expectile regression towards the target network's Q of the action taken. */
#define IQL_COLUMNS 4         /* of a row: loss, V, advantage; dloss/dV */
#define IQL_MODULATE_ROWS 256 /* of a block of iql_modulate */

typedef struct {
    const float *logits;     //@ in f32[B*Np]           (B, Np) head output of the target network on s
    const int32_t *action;   //@ in i32[B]              mixed radix, branch 0 slowest
    const float *x;          //@ in f32[B*Hp]           (B, Hp) the online trunk's output on s, as a constant
    const float *w;          //@ in f32[Hp*16]          (Hp, 16) column 0
    const float *bias;       //@ in f32[16]
    const step_block *step;  //@ in step_block[1]       v_min, delta_z
    float *rows;             //@ out f32[B*4]           (B, IQL_COLUMNS)
    uint64_t branch_sizes;   //@ actions of branch b in bits [8 b, 8 b + 8)
    float expectile;         //@ tau_iql
    int32_t B;               //@ rows = gridDim.x
    int32_t K;               //@ branches
    int32_t N;               //@ atoms
    int32_t Np;              //@ floats of a head row
    int32_t Hp;              //@ width of the trunk's output
} iql_value_args;

/* td_error *= clip(exp(beta * advantage), low, high): for the priorities alone. */
typedef struct {
    const float *rows;  //@ in f32[B*4]
    float *td_error;    //@ inout f32[B]
    float beta;         //@ beta_iql
    float low;          //@ bounds of the factor
    float high;         //@
    int32_t B;          //@ rows
} iql_modulate_args;

/* Heads of a few outputs on the trunk's output as a constant: what a head's own kernel leaves in a row is first what is reported
 * of it, then the gradients of its outputs. */
#define HEAD_WIDTH 16   /* padded width of such a head */
#define HEAD_COLUMNS 64 /* of x that a block of head_gradient takes */

typedef struct {
    const float *x;         //@ in f32[B*Hp]           (B, Hp)
    const float *rows;      //@ in f32[B*C]            (B, C)
    float *dw;              //@ out f32[splits*Hp*16]  (splits, Hp, HEAD_WIDTH), pads zero: of each split of the rows
    float *dbias;           //@ out f32[16]
    float *means;           //@ out f32[first]         means over the rows of the columns before the gradients
    int32_t B;              //@ rows
    int32_t C;              //@ columns of a row
    int32_t first;          //@ column of the first output's gradient
    int32_t outputs;        //@ at most HEAD_WIDTH
    int32_t Hp;             //@ width of the trunk's output
    int32_t splits;         //@ of the rows
} head_gradient_args;

/* Means over rows, for metrics. */
typedef struct {
    const float *rows; //@ in f32[R*C]         (R, C)
    float *means;      //@ out f32[means_of]   of the first columns
    int32_t R;         //@ rows
    int32_t C;         //@ columns
    int32_t means_of;  //@ columns to average, at most C
    uint32_t pad0_;    //@ pad
} column_means_args;

/* Selectivity and risk: what the row's n-step return should have told beforehand. */
#define SELECTIVITY_COLUMNS 4 /* of a row: loss, probability, label; dloss/dlogit */
#define RISK_COLUMNS 7        /* of a row: pinball loss, squared error, quantile, CVaR, below the quantile; two gradients */

typedef struct {
    const float *x;         //@ in f32[B*Hp]           (B, Hp) the online trunk's output on s, as a constant
    const float *ret;       //@ in f32[B]              n-step return
    const float *w;         //@ in f32[Hp*16]
    const float *bias;      //@ in f32[16]
    float *rows;            //@ out f32[B*4]           (B, SELECTIVITY_COLUMNS)
    int32_t B;              //@ rows = gridDim.x
    int32_t Hp;             //@ width of the trunk's output
} selectivity_args;

typedef struct {
    const float *x;         //@ in f32[B*Hp]
    const float *ret;       //@ in f32[B]
    const float *w;         //@ in f32[Hp*16]          columns 0: quantile, 1: CVaR
    const float *bias;      //@ in f32[16]
    float *rows;            //@ out f32[B*7]           (B, RISK_COLUMNS)
    float level;            //@ of the quantile
    int32_t B;              //@ rows = gridDim.x
    int32_t Hp;             //@ width of the trunk's output
    uint32_t pad0_;         //@ pad
} risk_args;
