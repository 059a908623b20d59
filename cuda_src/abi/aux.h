/* Auxiliary losses on the C51 heads: cuda_src/heads. Shapes as in loss.h. */

/* Columns of a row of an auxiliary loss. */
#define AUX_LOSS 0
#define AUX_NORM2 1 /* sum of squares of the row's gradient by the logits */
#define AUX_COLUMNS 2

typedef struct {
    const float *logits;    //@ in f32[B*Np]           (B, Np) head output of the online network on s
    const int32_t *action;  //@ in i32[B]              mixed radix, branch 0 slowest
    const step_block *step; //@ in step_block[1]       v_min, delta_z
    float *part;            //@ out f32[B*Np]          (B, Np) gradient of the head output, pads zero
    float *rows;            //@ out f32[B*2]           (B, AUX_COLUMNS)
    uint64_t branch_sizes;  //@ actions of branch b in bits [8 b, 8 b + 8)
    float weight;           //@ alpha_cql times the branch scale
    int32_t B;              //@ rows = gridDim.x
    int32_t K;              //@ branches
    int32_t S;              //@ actions over all branches
    int32_t N;              //@ atoms
    int32_t Np;             //@ floats of a head row
} cql_gradient_args;

/* dlogits += scale * part, scale so that the part's norm is at most its share of the gradient budget. */
typedef struct {
    const float *part;      //@ in f32[B*Np]           (B, Np)
    const float *rows;      //@ in f32[B*2]            (B, AUX_COLUMNS)
    const step_block *step; //@ in step_block[1]       grad_budget; 0: no bound
    float *dlogits;         //@ inout f32[B*Np]        (B, Np)
    float *loss;            //@ out f32[1]             mean over the rows
    float *scale;           //@ out f32[1]             factor applied
    float share;            //@ of the budget
    int32_t B;              //@ rows
    int32_t Np;             //@ floats of a head row, multiple of 16
    uint32_t pad0_;         //@ pad
} aux_blend_args;
