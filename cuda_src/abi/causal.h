/* Causal intervention, what do(s_g = reference) changes in Q: cuda_src/network/causal.cu. Shapes as in loss.h: K branches
 * of S actions together, N atoms, Np floats of a head row. */

typedef struct {
    const float *state;     //@ in f32[R*Sp]     (R, Sp) observed rows
    const int32_t *bounds;  //@ in i32[G+1]      group g is columns [bounds[g], bounds[g+1])
    const float *window;    //@ in f32[R*L*Sp] if_any    (R, L, Sp) the states that end in the rows
    const int32_t *length;  //@ in i32[R] optional       states in a window; null without windows
    float *x;               //@ out f32[G*R*Sp]  (G, R, Sp) the rows with group g at its reference
    float *past;            //@ out f32[G*R*L*Sp] if_any (G, R, L, Sp) the windows, the group at the same reference throughout
    int32_t *past_length;   //@ out i32[G*R] optional
    int32_t R;              //@ rows
    int32_t Sp;             //@ floats of a row
    int32_t G;              //@ groups
    int32_t mean;           //@ the reference: 1 the mean of the rows, 0 zero
    int32_t L;              //@ states of a window; 0: the network does not look back
    uint32_t pad0_;         //@ pad
} causal_intervene_args;

typedef struct {
    const float *changed;          //@ in f32[G*R*Np]     (G, R, Np) logits under the interventions
    const float *observed;         //@ in f32[R*Np]       (R, Np) logits of the rows as they are
    const step_block *step;        //@ in step_block[1]   support
    float *effect;                 //@ out f32[G*R]       mean over the actions of all branches of |Q(do) - Q|
    uint64_t branch_sizes;         //@ actions of branch b in bits [8 b, 8 b + 8)
    int32_t R;                     //@ rows
    int32_t G;                     //@ groups
    int32_t K;                     //@ branches
    int32_t S;                     //@ actions over all branches
    int32_t N;                     //@ atoms
    int32_t Np;                    //@ floats of a head row
} causal_effect_args;

typedef struct {
    const float *effect;    //@ in f32[G*R]
    float *importance;      //@ inout f32[G]      running mean of a group's effect
    uint32_t *measured;     //@ inout u32[1]      interventions so far
    float *largest;         //@ out f32[1]        importance
    float *entropy;         //@ out f32[1]        of the groups' shares, as a share of log G; 1 for a single group or no effect
    float rate;             //@ share of a new effect in the running mean, once 1/rate have been averaged
    int32_t R;              //@ rows
    int32_t G;              //@ groups
    uint32_t pad0_;         //@ pad
} causal_update_args;
