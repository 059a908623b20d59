/* Adaptive scale of the returns (van Hasselt 2016, without the shift): cuda_src/loss/popart.cu. */

typedef struct {
    const return_stats *returns; //@ in return_stats[1]
    const float *ret;            //@ in f32[B]              n-step return, reward times reward_scale
    const step_block *step;      //@ in step_block[1]       step, reward_scale
    const int32_t *ranges;       //@ in i32[R*2] optional   (begin, length) of the tensors to correct
    popart_state *state;         //@ inout popart_state[1]
    float *theta;                //@ inout f32[n] optional  where the tensors stand: online parameters,
    float *target;               //@ inout f32[n] optional  target,
    float *m;                    //@ inout f32[n] optional  moments
    float *v;                    //@ inout f32[n] optional
    float *normalized;           //@ out f32[B]             n-step return, raw reward / sigma
    float *metrics;              //@ out f32[2]             sigma, sigma / sigma of the step before
    int64_t min_count;           //@ returns before sigma moves
    float max_change;            //@ sigma grows or shrinks by at most the factor 1 + max_change
    int32_t B;                   //@ rows
    int32_t R;                   //@ tensors to correct
    int32_t n;                   //@ floats from the first of them to the end of the last
} popart_args;
