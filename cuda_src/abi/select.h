/* Acting: cuda_src/network/select_actions.cu. Shapes as in loss.h: R rows, K branches (1 to 8) of at most 255 actions, S
 * actions over all branches, N atoms (2 to 256), Np floats of a head row: N value atoms, S * N advantage atoms, zeros. */

/* Grid (R,), block (128,). */
typedef struct {
    const float *logits;          //@ in f32[R*Np]            (R, Np)
    const float *more;            //@ in f32[R*Mp] if_any     (R, Mp) advantages of E heads beside the network's own
    const control_block *control; //@ in control_block[1]     seed, support
    const explore_block *explore; //@ in explore_block[1]
    uint64_t *draws;              //@ inout u64[R]            Philox counter of each row, advanced by one
    guard_block *guard;           //@ inout guard_block[1] optional   non-finite values
    float *q;                     //@ out f32[R*S] optional   (R, S) expected return of each action
    int32_t *action;              //@ out i32[R]              mixed radix, branch 0 slowest; -1: a value is not finite
    uint64_t branch_sizes;        //@ actions of branch b in bits [8 b, 8 b + 8)
    int32_t R;                    //@ rows
    int32_t K;                    //@ branches
    int32_t S;                    //@ actions over all branches
    int32_t N;                    //@ atoms
    int32_t Np;                   //@ floats of a head row
    int32_t Mp;                   //@ floats of a row of more: E * S * N, then zeros; 0: none
    int32_t E;                    //@ heads in it: the choice is by the mean of all 1 + E
    uint32_t pad0_;               //@ pad
} select_actions_args;

/* One thread: new exploration settings by value, in stream order. */
typedef struct {
    explore_block *explore;       //@ out explore_block[1]
    float epsilon;                //@ in [0, 1]
    float temperature;            //@ >= 0
} set_exploration_args;
