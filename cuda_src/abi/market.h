/* The trading environment (docs/environment.md). Bars are (N, 4): open, high, low, close, in ticks. */

/* Branches of the factored action, slowest first: direction, size, order type, urgency (market/actions.py). */
#define ACTION_DIRECTIONS 3
#define ACTION_SIZES 4
#define ACTION_ORDERS 3
#define ACTION_URGENCIES 3
#define ACTION_COUNT 108

/* Floats of the portfolio part of a state row. */
#define PORTFOLIO_FEATURES 4

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
    const env_state *env;   //@ in env_state[E]
    const float *features;  //@ in f32[N*stride]       (N, stride), the first F columns are read
    float *state;           //@ out f32[E*Sp]          (E, Sp) features, portfolio, zeros
    int32_t E;              //@ environments
    int32_t N;              //@ bars
    int32_t F;              //@ market features
    int32_t stride;         //@ floats in a row of features, >= F
    int32_t Sp;             //@ >= F + PORTFOLIO_FEATURES
    uint32_t pad0_;         //@ pad
} env_observe_args;

typedef struct {
    env_state *env;              //@ inout env_state[E]
    const int32_t *action;       //@ in i32[E]              mixed radix
    const float *bars;           //@ in f32[N*4]            (N, 4)
    const int32_t *session_end;  //@ in i32[N]
    const float *features;       //@ in f32[N*stride]       (N, stride), the first F columns are read
    const market_block *market;  //@ in market_block[1]
    float *state;                //@ out f32[E*Sp] optional (E, Sp) observation after the step; null: not written
    int32_t *row_feature;        //@ out i32[E] optional    the row for the replay buffer: all of row_* or none
    float *row_portfolio;        //@ out f32[E*4] optional  (E, 4)
    int32_t *row_next_feature;   //@ out i32[E] optional
    float *row_next_portfolio;   //@ out f32[E*4] optional  (E, 4)
    int32_t *row_action;         //@ out i32[E] optional
    float *row_reward;           //@ out f32[E] optional    money, raw
    int32_t *row_ended;          //@ out i32[E] optional    ENDED_* bits; ENDED_ABSENT: idle, the rest of the row is 0
    bar_result *result;          //@ inout bar_result[results] optional  of bars [result_first, result_first + results)
    int32_t E;                   //@ environments
    int32_t N;                   //@ bars
    int32_t F;                   //@ market features
    int32_t stride;              //@ floats in a row of features, >= F
    int32_t Sp;                  //@ >= F + PORTFOLIO_FEATURES
    int32_t result_first;        //@ bar of result[0]
    int32_t results;             //@ length of result; bars outside are not recorded
    uint32_t pad0_;              //@ pad
} env_step_args;
