/* The first and the last node of the step, and the kernel that applies what the host changes: cuda_src/guard. */

typedef struct {
    const control_block *control;  //@ in control_block[1]
    train_state *state;            //@ inout train_state[1]   advanced by one step
    step_block *step;              //@ out step_block[1]
    int32_t N;                     //@ atoms of the return support
    uint32_t pad0_;                //@ pad
} counters_args;

/* A new control_block, passed by value as 64-bit words (so that it takes effect in stream order). */
#define CONTROL_WORDS 17
typedef struct {
    uint64_t *control;  //@ out u64[17]
    uint64_t w0;        //@ word 0 of the block
    uint64_t w1;        //@ ...
    uint64_t w2;        //@
    uint64_t w3;        //@
    uint64_t w4;        //@
    uint64_t w5;        //@
    uint64_t w6;        //@
    uint64_t w7;        //@
    uint64_t w8;        //@
    uint64_t w9;        //@
    uint64_t w10;       //@
    uint64_t w11;       //@
    uint64_t w12;       //@
    uint64_t w13;       //@
    uint64_t w14;       //@
    uint64_t w15;       //@
    uint64_t w16;       //@
} apply_control_args;

typedef struct {
    const float *total;          //@ in f32[W]                statistics of the rows drawn
    const float *rest;           //@ in f32[W] optional       of the other rows that have a loss: their norms
    const step_block *step;      //@ in step_block[1]
    const optim_stats *optim;    //@ in optim_stats[1]
    const replay_state *replay;  //@ in replay_state[1]
    guard_block *guard;          //@ inout guard_block[1]
    alarm_block *alarms;         //@ inout alarm_block[1]
    step_record *records;        //@ out step_record[capacity]   mapped ring
    const float *metrics;        //@ in f32[M] if_any            what other children measured in this step
    float *metrics_ring;         //@ out f32[capacity*M] if_any  (capacity, M) beside the records, mapped
    int32_t W;                   //@ STATS + N
    int32_t N;                   //@ atoms
    int32_t B;                   //@ rows drawn
    int32_t capacity;            //@ records of the ring
    int32_t M;                   //@ metrics of other children
    uint32_t pad0_;              //@ pad
} publish_args;

/* The guard's checks, one value each: what a kernel cannot be brought to compute from any input is planted here (tests). */
typedef struct {
    const float *mass;             //@ in f32[n]
    const float *log_probability;  //@ in f32[n]
    const float *q;                //@ in f32[n]
    const float *probabilities;    //@ in f32[n]             their sum
    const float *log_sum;          //@ in f32[n]             of the exponentials of the logits
    guard_block *guard;            //@ inout guard_block[n]   one a value
    float z_max;                   //@ largest |z| of the support
    int32_t n;                     //@ values
} guard_probe_args;
