/* Implicit quantile networks (Dabney 2018) beside the C51 heads: cuda_src/heads/iqn_*.cu. B rows, K branches, S actions over
 * all branches, N sampled levels tau and as many tau', H the width of the trunk's output, padded Hp; C cosines. */

#define IQN_COSINE_ROWS 32 /* of a block of iqn_cosines */
#define IQN_GATHER_ROWS 16 /* partial sums over the batch's rows that a block of iqn_gather adds up at the end */
#define IQN_GATHER_COLS 64 /* of the head's weights that a block of iqn_gather makes, along H */
#define IQN_TAU_BITS 24    /* a level is a multiple of 2^-24: exact in f32, and so is its product with k modulo 2 */

/* Columns of a row; after them the bias gradient of each branch's taken action. */
#define IQN_LOSS 0
#define IQN_NORM2 1  /* sum of squares of the row's gradient by the trunk's output */
#define IQN_SPREAD 2 /* interquartile range of the sampled quantiles, mean over the branches */
#define IQN_COLUMNS 3

typedef struct {
    const step_block *step;  //@ in step_block[1]     seed, rng_step
    float *tau;              //@ out f32[rows]        tau of (B, N), then tau'
    float *cosines;          //@ out f32[rows*Cp]     cos(pi k tau), k < C; pads zero
    int32_t rows;            //@ 2 B N
    int32_t C;               //@ cosines
    int32_t Cp;              //@ padded
    uint32_t pad0_;          //@ pad
} iqn_cosines_args;

typedef struct {
    const float *x;              //@ in f32[B*Hp]       (B, Hp) psi: the online trunk's output on s
    const float *x_target;       //@ in f32[B*Hp]       that of the target network on s'
    const float *embedded;       //@ in f32[B*N*Hp]     (B, N, Hp) phi of tau, online
    const float *embedded_next;  //@ in f32[B*N*Hp]     of tau', target
    const float *tau;            //@ in f32[B*N]        (B, N)
    const float *w;              //@ in f32[Hp*Sp]      (Hp, Sp) the head
    const float *bias;           //@ in f32[Sp]
    const float *w_target;       //@ in f32[Hp*Sp]
    const float *bias_target;    //@ in f32[Sp]
    const int32_t *action;       //@ in i32[B]          mixed radix, branch 0 slowest
    const int32_t *next_action;  //@ in i32[B*K]        (B, K) a* of C51
    const float *ret;            //@ in f32[B]          n-step return
    const float *discount;       //@ in f32[B]          0 where the episode terminated
    const float *priority;       //@ in f32[B]          of the rows drawn
    const step_block *step;      //@ in step_block[1]   min_priority, beta_per
    float *rows;                 //@ out f32[B*(3+K)]   (B, IQN_COLUMNS + K)
    int32_t *column;             //@ out i32[B*K]       (B, K) column of the head that the row's gradient goes to
    float *dembedded;            //@ out f32[B*N*Hp]    (B, N, Hp) gradient by phi before its ReLU
    float *dhead;                //@ out f32[B*K*Hp]    (B, K, Hp) gradient by the taken action's head column
    float *dx;                   //@ out f32[B*Hp]      (B, Hp) gradient by psi, before the budget
    uint64_t branch_sizes;       //@ actions of branch b in bits [8 b, 8 b + 8)
    float kappa;                 //@ Huber
    float branch_scale;          //@ 1/K, or 1
    int32_t B;                   //@ rows = gridDim.x
    int32_t K;                   //@ branches
    int32_t N;                   //@ levels
    int32_t Hp;                  //@ width of the trunk's output
    int32_t Sp;                  //@ width of the head
    uint32_t pad0_;              //@ pad
} iqn_loss_args;

typedef struct {
    const float *rows;       //@ in f32[B*(3+K)]    (B, IQN_COLUMNS + K)
    const int32_t *column;   //@ in i32[B*K]        (B, K)
    const float *dhead;      //@ in f32[B*K*Hp]     (B, K, Hp)
    const float *dx;         //@ in f32[B*Hp]       (B, Hp)
    const step_block *step;  //@ in step_block[1]   grad_budget; 0: no bound
    float *dw;               //@ out f32[(splits-1)*split_stride+Hp*Sp]  (Hp, Sp) of each split; nobody's columns and pads zero
    float *dbias;            //@ out f32[(splits-1)*split_stride+Sp]     (Sp,) of each split
    float *dtrunk;           //@ out f32[B*Hp]      dx within its share of the budget
    float *metrics;          //@ out f32[3]         mean loss, factor on the trunk's gradient, mean spread
    uint64_t branch_sizes;   //@ actions of branch b in bits [8 b, 8 b + 8)
    int64_t split_stride;    //@ floats from a split's gradient to the next one's
    float share;             //@ of the budget
    int32_t B;               //@ rows
    int32_t K;               //@ branches
    int32_t S;               //@ actions over all branches
    int32_t Hp;              //@ width of the trunk's output
    int32_t Sp;              //@ width of the head
    int32_t splits;          //@ of the rows
    int32_t trunk_blocks;    //@ blocks that write dtrunk
} iqn_gather_args;
