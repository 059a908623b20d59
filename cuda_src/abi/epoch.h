/* Work between epochs, and the loss term of the regulator: cuda_src/heads/expected_q.cu, entropy.cu. Shapes as in loss.h. */

typedef struct {
    const float *logits;           //@ in f32[R*Np]           (R, Np) head output of the online network
    const control_block *control;  //@ in control_block[1]    v_min, v_max
    float *q;                      //@ out f32[R*S]           (R, S) expected return of every action
    float *variance;               //@ out f32[R*S]           (R, S) of its return
    float *entropy;                //@ out f32[R*S]           (R, S) of its distribution, over log N
    float *mean;                   //@ out f32[R*N]           (R, N) distribution: mean over the branches of that over their actions
    uint64_t branch_sizes;         //@ actions of branch b in bits [8 b, 8 b + 8)
    int32_t R;                     //@ rows = gridDim.x
    int32_t K;                     //@ branches
    int32_t S;                     //@ actions over all branches
    int32_t N;                     //@ atoms
    int32_t Np;                    //@ floats of a head row
    uint32_t pad0_;                //@ pad
} expected_q_args;

typedef struct {
    const float *logits;    //@ in f32[B*Np]   (B, Np) head output of the online network on s
    const int32_t *action;  //@ in i32[B]      mixed radix, branch 0 slowest
    const float *weight;    //@ in f32[1]      of the loss, as the regulator has set it
    float *part;            //@ out f32[B*Np]  (B, Np) gradient of the head output, pads zero
    float *rows;            //@ out f32[B*2]   (B, AUX_COLUMNS)
    uint64_t branch_sizes;  //@ actions of branch b in bits [8 b, 8 b + 8)
    float low;              //@ range of the entropy, over log N
    float high;             //@
    float branch_scale;     //@ 1/K: mean over the branches; 1: sum
    int32_t B;              //@ rows = gridDim.x
    int32_t K;              //@ branches
    int32_t S;              //@ actions over all branches
    int32_t N;              //@ atoms
    int32_t Np;             //@ floats of a head row
} entropy_gradient_args;
typedef entropy_gradient_args entropy_gradient_wide_args;
