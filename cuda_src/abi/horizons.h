/* Multi-horizon returns (docs/step/multi_horizon.md): cuda_src/heads/horizons.cu. H horizons, at most MAX_HORIZONS. A label is made
 * from the ring's raw rewards, never stored. */

#define MAX_HORIZONS 8
/* Columns of a row, H each: squared error, valid, label, its square; dloss/dprediction. 0 where the label is not valid. */
#define HORIZON_COLUMNS 5
#define HORIZON_MEANS 4 /* of them, what is reported */

/* Grid (B,), any block: a row a block, a warp a horizon. */
typedef struct {
    const float *x;             //@ in f32[B*Hp]              (B, Hp) the online trunk's output on s, as a constant
    const float *w;             //@ in f32[Hp*16]             column h: horizon h
    const float *bias;          //@ in f32[16]
    const int32_t *index;       //@ in i32[B]                 row of the ring; -1: none
    const replay_row *ring_rows; //@ in replay_row[capacity]
    const replay_state *ring;   //@ in replay_state[1]        position, stride
    const int32_t *bars;        //@ in i32[H]
    const step_block *step;     //@ in step_block[1]          reward_scale
    float *rows;                //@ out f32[B*5*H]            (B, HORIZON_COLUMNS, H)
    int32_t B;                  //@ rows = gridDim.x
    int32_t H;                  //@ horizons
    int32_t Hp;                 //@ width of the trunk's output
    int32_t capacity;           //@ of the ring
} horizon_rows_args;

/* Running errors, the blend of the next step, metrics. Grid (1,), any block. */
typedef struct {
    const float *means;         //@ in f32[4*H]               (HORIZON_MEANS, H) over the rows
    const float *shaping;       //@ in f32[B] optional        gamma^m Phi(s') - Phi(s) of each row
    float *running;             //@ inout f32[4*H]            the same, running
    uint32_t *streak;           //@ inout u32[1]              steps in a row in which the blend explained something, at most ready_steps
    float *blend;               //@ out f32[H+1]              weight of each horizon; confidence
    float *metrics;             //@ out f32[2*H+n]            error of each horizon, weight of each, loss, valid, confidence; mean |shaping|
    float rate;                 //@ share of the new batch
    float temperature;          //@ of the blend
    int32_t B;                  //@ rows
    int32_t H;                  //@ horizons
    int32_t n;                  //@ 4 with shaping, else 3
    uint32_t ready_steps;       //@ of these, before there is any confidence
} horizon_blend_args;

/* The return that ddqn takes: with the difference of the blend's potential. Grid (B,), any block. */
typedef struct {
    const float *x;             //@ in f32[B*Hp]              the online trunk's output on s
    const float *x_next;        //@ in f32[B*Hp]              on s'
    const float *w;             //@ in f32[Hp*16]
    const float *bias;          //@ in f32[16]
    const float *ret;           //@ in f32[B]                 n-step return, in units of the support
    const float *discount;      //@ in f32[B]                 gamma^m, 0 when terminated
    const int32_t *bars;        //@ in i32[H]
    const float *blend;         //@ in f32[H+1]
    const step_block *step;     //@ in step_block[1]          v_min, v_max, reward_scale
    const float *sigma;         //@ in f32[1] optional        unit of the support in raw reward; null: 1 / reward_scale
    float *shaping;             //@ out f32[B]
    float *shaped;              //@ out f32[B]
    float bound;                //@ of the potential, as a share of half the support
    int32_t B;                  //@ rows = gridDim.x
    int32_t H;                  //@ horizons
    int32_t Hp;                 //@ width of the trunk's output
} horizon_shape_args;
