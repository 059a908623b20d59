/* The internal state vector: cuda_src/loss/isv.cu, docs/step/isv.md. Its components, each within [0, 1]: */
#define ISV_ATOM_USE 0
#define ISV_ENTROPY 1
#define ISV_TD_ERROR 2
#define ISV_GRAD_NORM 3
#define ISV_DRAWDOWN 4
#define ISV_PHASE 5
#define ISV_COMPONENTS 6

/* Entropy of the predicted return distribution of the actions taken. Grid (B,), any block. */
typedef struct {
    const float *logits;    //@ in f32[B*Np]     (B, Np) head outputs: online(s)
    const int32_t *action;  //@ in i32[B]        mixed radix, branch 0 slowest
    float *entropy;         //@ out f32[B]       mean over the branches, as a share of log N
    uint64_t branch_sizes;  //@ actions of branch b in bits [8 b, 8 b + 8)
    int32_t B;              //@ rows
    int32_t K;              //@ branches
    int32_t N;              //@ atoms
    int32_t Np;             //@ floats of a head row, multiple of 16
} isv_entropy_args;

/* Grid (1,), any block. */
typedef struct {
    const float *total;           //@ in f32[W]              statistics of the rows drawn
    const float *entropy;         //@ in f32[B]              of each row
    const optim_stats *optim;     //@ in optim_stats[1]      of the network
    const double *drawdown;       //@ in f64[1]              mean over the environments, raw reward
    const step_block *step;       //@ in step_block[1]
    const control_block *control; //@ in control_block[1]    horizon
    float *vector;                //@ inout f32[6]           a component that is not finite keeps its value
    float *metrics;               //@ out f32[6]             the same, for the record
    int32_t B;                    //@ rows drawn
    int32_t N;                    //@ atoms
    int32_t W;                    //@ STATS + N
    uint32_t pad0_;               //@ pad
} isv_update_args;
