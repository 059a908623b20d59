/* Hindsight relabelling (HER, Andrychowicz 2017): cuda_src/replay/her.cu. Modes of the ring as in replay.h. */

/* How the reward is made from what was achieved and the goal. */
#define HER_RETURN 0 /* stored reward, less what it says of the return above the own goal, and then of that above the new one */
#define HER_REACH 1  /* 0 where the goal is met within the tolerance, else -1 */

/* Columns of a relabelled row's report; the first HER_METRICS are averaged. */
#define HER_OFFSET 0  /* transitions from the row to its donor */
#define HER_REWARD 1  /* n-step return with the new goal, normalized */
#define HER_REACHED 2 /* 1 where the window's end has achieved the goal */
#define HER_METRICS 3
#define HER_COLUMNS 3

#define HER_WAYS 32 /* places that one round of the search for an episode's end looks at */

/* Relabels a row drawn, a block a row. Grid (H,), block (32,). */
typedef struct {
    const replay_state *ring;       //@ in replay_state[1]
    const replay_row *rows;         //@ in replay_row[capacity]
    const float *state;             //@ in f32[capacity*S] optional       vector mode
    const float *final_state;       //@ in f32[finals*S] optional         vector mode
    const int64_t *final_owner;     //@ in i64[finals] optional           vector mode
    const float *portfolio;         //@ in f32[capacity*2*P] optional     market mode
    const float *conviction;        //@ in f32[capacity] optional         factors on the rewards, as per_sample has them
    const double *unit;             //@ in f64[1] optional                raw reward of 1 in the achieved column; null: 1
    const step_block *step;         //@ in step_block[1]                  seed, rng_step, gamma, reward_scale
    const float *drawn_state;       //@ in f32[B*Sp]     (B, Sp)
    const float *drawn_next_state;  //@ in f32[B*Sp]
    const float *drawn_discount;    //@ in f32[B]
    const float *drawn_priority;    //@ in f32[B]
    const int32_t *drawn_action;    //@ in i32[B]
    const int32_t *drawn_index;     //@ in i32[B]                         -1: nothing was drawn
    float *batch_state;             //@ out f32[H*Sp]    (H, Sp)
    float *batch_next_state;        //@ out f32[H*Sp]
    int32_t *batch_action;          //@ out i32[H]
    float *batch_return;            //@ out f32[H]
    float *batch_discount;          //@ out f32[H]
    int32_t *batch_index;           //@ out i32[H]
    float *batch_priority;          //@ out f32[H]
    int32_t *donor;                 //@ out i32[H]                        row of the ring that the goal was achieved in; -1: none
    float *report;                  //@ out f32[H*3]     (H, HER_COLUMNS)
    int32_t H;                      //@ rows to relabel, the grid
    int32_t B;                      //@ rows drawn
    int32_t capacity;               //@
    int32_t finals;                 //@ capacity of final_state
    int32_t S;                      //@ state width
    int32_t Sp;                     //@ padded state width
    int32_t P;                      //@ portfolio values of a state
    int32_t n_step;                 //@ 1 .. MAX_N_STEP
    int32_t goal;                   //@ first column of the goal in a state
    int32_t achieved;               //@ first column of what was achieved
    int32_t width;                  //@ columns of each
    int32_t reward;                 //@ HER_RETURN, with width 1, or HER_REACH
    float tolerance;                //@ HER_REACH: distance within which a goal is met
    uint32_t pad0_;                 //@ pad
} her_relabel_args;
