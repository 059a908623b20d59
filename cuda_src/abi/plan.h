/* Plan: conviction, and the readiness that it earns (docs/step/plan.md): cuda_src/heads/plan.cu. */

/* Columns of a row of plan_rows. */
#define PLAN_LOSS 0        /* of a row trained on, else 0 */
#define PLAN_PROBABILITY 1 /* of every row */
#define PLAN_LABEL 2       /* of a row trained on */
#define PLAN_TRAINED 3     /* 1: trained on */
#define PLAN_ERROR 4       /* (p - y)^2 of a held-out row, else 0 */
#define PLAN_HELD_LABEL 5  /* its label */
#define PLAN_HELD 6        /* 1: held out */
#define PLAN_CONVICTION 7  /* what the row's reward is scaled by */
#define PLAN_MEANS 8       /* what is reported; then dloss/dlogit */
#define PLAN_COLUMNS 9

/* Grid (B,), any block: a row a block. */
typedef struct {
    const float *x;              //@ in f32[B*Hp]              (B, Hp) the online trunk's output on s, as a constant
    const float *w;              //@ in f32[Hp*16]             column 0
    const float *bias;           //@ in f32[16]
    const int32_t *index;        //@ in i32[B]                 row of the ring; -1: none
    const replay_row *ring_rows; //@ in replay_row[capacity]
    const replay_state *ring;    //@ in replay_state[1]
    const float *conviction;     //@ in f32[capacity] optional   null: 1
    const step_block *step;      //@ in step_block[1]          seed
    float *rows;                 //@ out f32[B*9]              (B, PLAN_COLUMNS)
    float holdout;               //@ share of the blocks, or episodes, that are held out
    int32_t block_bars;          //@ rows of the feature table held out, or not, together; 0: by episode (vector mode)
    int32_t length;              //@ steps ahead
    int32_t B;                   //@ rows = gridDim.x
    int32_t Hp;                  //@ width of the trunk's output
    int32_t capacity;            //@ of the ring
} plan_rows_args;

/* Skill and readiness after the step; metrics. One thread. */
typedef struct {
    const float *means;          //@ in f32[8]                 (PLAN_MEANS,) over the rows
    plan_state *state;           //@ inout plan_state[1]
    float *metrics;              //@ out f32[7]                loss, probability, rate, held-out share, skill, readiness, conviction
    float rate;                  //@ share of the new batch
    uint32_t ready_steps;        //@ M: steps in a row with positive skill
} plan_update_args;

/* What a decision is scaled by. Grid (R,), any block: a row a block. */
typedef struct {
    const float *x;              //@ in f32[R*Hp]              (R, Hp) the trunk's output on the state to act in
    const float *w;              //@ in f32[Hp*16]
    const float *bias;           //@ in f32[16]
    const plan_state *state;     //@ in plan_state[1]          readiness
    float *conviction;           //@ out f32[R]                exactly 1 below the gate
    float gate;                  //@ readiness from which conviction counts
    int32_t R;                   //@ rows = gridDim.x
    int32_t Hp;                  //@ width of the trunk's output
    uint32_t pad0_;              //@ pad
} conviction_args;
