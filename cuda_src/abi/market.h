/* The trading environment (docs/environment.md). Bars are (N, 4): open, high, low, close, in ticks. */

/* Branches of the factored action, slowest first: direction, size, order type, urgency (market/actions.py). */
#define ACTION_DIRECTIONS 3
#define ACTION_SIZES 4
#define ACTION_ORDERS 3
#define ACTION_URGENCIES 3
#define ACTION_COUNT 108

/* Floats of the portfolio part of a state row. */
#define PORTFOLIO_FEATURES 4

/* Floats of the goal slot, behind them where there is one: return of the episode so far, return that it is to reach. */
#define GOAL_FEATURES 2

/* Cycles of counterfactual steps (docs/counterfactual.md): what is changed of the action taken. */
#define CYCLE_DIRECTION 0 /* short and long swapped */
#define CYCLE_SMALLER 1   /* the next smaller size */
#define CYCLE_LARGER 2    /* the next larger size */
#define CYCLE_ORDER 3     /* another order type */
#define CYCLE_URGENCY 4   /* another urgency */
#define CYCLE_FLAT 5      /* flat */
#define CYCLES 6

typedef struct {
    env_state *env;              //@ out env_state[E]
    const int32_t *start;        //@ in i32[E]   first bar whose close is seen
    const int32_t *end;          //@ in i32[E]   one past the last bar to execute in
    const int32_t *flatten;      //@ in i32[E]   1: flat at end; 0: truncated there
    const int32_t *session_end;  //@ in i32[N]   last bar of the session that bar i belongs to
    int32_t E;                   //@ environments
    int32_t N;                   //@ bars
} env_reset_args;

typedef struct {
    const env_state *env;        //@ in env_state[E]
    const float *features;       //@ in f32[N*stride]       (N, stride), the first F columns are read
    const market_block *market;  //@ in market_block[1]
    float *state;                //@ out f32[E*Sp]          (E, Sp) features, portfolio, zeros
    int32_t E;                   //@ environments
    int32_t N;                   //@ bars
    int32_t F;                   //@ market features
    int32_t P;                   //@ PORTFOLIO_FEATURES, or with GOAL_FEATURES more
    int32_t stride;              //@ floats in a row of features, >= F
    int32_t Sp;                  //@ >= F + P
} env_observe_args;

typedef struct {
    env_state *env;              //@ inout env_state[E]
    const int32_t *action;       //@ in i32[E]              mixed radix
    const float *bars;           //@ in f32[N*4]            (N, 4)
    const int32_t *session_end;  //@ in i32[N]
    const float *features;       //@ in f32[N*stride]       (N, stride), the first F columns are read
    const market_block *market;  //@ in market_block[1]
    const float *conviction;     //@ in f32[E] optional     scales the size; null: 1
    const control_block *control;  //@ in control_block[1] optional   seed of what is added; null: nothing is
    float *state;                //@ out f32[E*Sp] optional (E, Sp) observation after the step; null: not written
    int32_t *row_feature;        //@ out i32[E+C] optional  rows for the replay buffer, E steps taken, then C counterfactual:
    float *row_portfolio;        //@ out f32[(E+C)*P] optional   all of row_* or none, row_mirrored apart
    int32_t *row_next_feature;   //@ out i32[E+C] optional
    float *row_next_portfolio;   //@ out f32[(E+C)*P] optional
    int32_t *row_action;         //@ out i32[E+C] optional  as the learner sees it: long and short swapped where mirrored
    float *row_reward;           //@ out f32[E+C] optional  money, raw
    int32_t *row_ended;          //@ out i32[E+C] optional  ENDED_* bits; ENDED_ABSENT: no row, the rest of it is 0
    int32_t *row_mirrored;       //@ out i32[E+C] optional  1: stored as the step of the mirrored market; null: none is
    float *row_conviction;       //@ out f32[E+C] optional  what the training reward of the row is scaled by
    uint64_t *draws;             //@ inout u64[E] optional  Philox counter of each environment, advanced by one
    augment_counts *counts;      //@ inout augment_counts[E] optional
    bar_result *result;          //@ inout bar_result[results] optional  of bars [result_first, result_first + results)
    int32_t E;                   //@ environments
    int32_t C;                   //@ counterfactual rows, 0 to E
    int32_t N;                   //@ bars
    int32_t F;                   //@ market features
    int32_t P;                   //@ PORTFOLIO_FEATURES, or with GOAL_FEATURES more
    int32_t stride;              //@ floats in a row of features, >= F
    int32_t Sp;                  //@ >= F + P
    int32_t result_first;        //@ bar of result[0]
    int32_t results;             //@ length of result; bars outside are not recorded
    uint32_t cycles;             //@ bit c: cycle c may be drawn
    float mirror_share;          //@ chance that a row is stored mirrored
    uint32_t pad0_;              //@ pad
} env_step_args;
