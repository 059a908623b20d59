/* Prioritized replay on the device: cuda_src/replay/. Two modes share the kernels; the pointers of the other mode are null.
 *
 *   vector   state f32[capacity*S], and final_state f32[finals*S] for the last observation of an episode
 *   market   features f32[bars*table], portfolio f32[capacity*2*P] (s, s'): a state is concat(features[row], portfolio), S = F + P
 *
 * The sums over priorities form a tree of fan-out 256: priority f32, padded with zeros to whole blocks; block_sum f64, one a
 * block of 256 priorities; super_sum f64[256], one per 256 of those, null up to 65,536 rows, where block_sum is f64[256]. */

#define SUM_FANOUT 256
#define MAX_N_STEP 64

/* Draws a row a block and writes its n-step transition into the batch. Grid (B,), block (32,). */
typedef struct {
    const float *priority;      //@ in f32[blocks*256]
    const double *block_sum;    //@ in f64[(blocks+255)/256*256]
    const double *super_sum;    //@ in f64[256] optional
    const replay_state *ring;   //@ in replay_state[1]                    stride
    const replay_row *rows;     //@ in replay_row[capacity]
    const float *state;         //@ in f32[capacity*S] optional           vector mode
    const float *final_state;   //@ in f32[finals*S] optional             vector mode
    const float *features;      //@ in f32[bars*table] optional           market mode
    const float *portfolio;     //@ in f32[capacity*2*P] optional         market mode
    const uint8_t *mirrored;    //@ in u8[capacity] optional              market mode: rows whose transition is mirrored
    const float *sign;          //@ in f32[S] optional                    with mirrored: factors on a state
    const float *conviction;    //@ in f32[capacity] optional             factors on the rewards
    step_block *step;           //@ inout step_block[1]                   min_priority: integer minimum
    guard_block *guard;         //@ inout guard_block[1] optional         nothing to draw
    float *batch_state;         //@ out f32[B*Sp]      (B, Sp)            pads zero
    float *batch_next_state;    //@ out f32[B*Sp]      (B, Sp)            pads zero
    int32_t *batch_action;      //@ out i32[B]
    float *batch_return;        //@ out f32[B]         R = sum_j gamma^j r_j, normalized rewards
    float *batch_discount;      //@ out f32[B]         gamma^m, 0 when terminated
    int32_t *batch_index;       //@ out i32[B]         row drawn, never falling in k; -1: nothing to draw
    float *batch_priority;      //@ out f32[B]         P_i, 0 when there was nothing to draw
    int32_t B;                  //@ rows to draw, the grid
    int32_t capacity;           //@
    int32_t blocks;             //@ ceil(capacity / 256)
    int32_t finals;             //@ capacity of final_state
    int32_t bars;               //@ rows of the feature table
    int32_t S;                  //@ state width
    int32_t Sp;                 //@ padded state width
    int32_t F;                  //@ features of a state: the first F columns of the table
    int32_t P;                  //@ portfolio values of a state
    int32_t table;              //@ floats in a row of the table, >= F
    int32_t n_step;             //@ 1 .. MAX_N_STEP
    uint32_t pad0_;             //@ pad
} per_sample_args;

/* P = (|delta| + eps)^alpha for the drawn rows, and the sums of their blocks. Grid (B,), block (32,). */
typedef struct {
    const int32_t *batch_index;    //@ in i32[B]        never falling in k, as per_sample leaves it; -1: nothing to write
    const float *td_error;         //@ in f32[B]        |delta| >= 0
    const step_block *step;        //@ in step_block[1]
    float *priority;               //@ inout f32[blocks*256]
    double *block_sum;             //@ inout f64[(blocks+255)/256*256]
    replay_state *state;           //@ inout replay_state[1]   max_priority, skipped
    int32_t B;                     //@ rows drawn, the grid
    int32_t blocks;                //@ ceil(capacity / 256)
} per_priority_args;

/* The upper sums of a tree of three levels. Grid (B,), block (32,). */
typedef struct {
    const int32_t *batch_index;    //@ in i32[B]
    const double *block_sum;       //@ in f64[(blocks+255)/256*256]
    double *super_sum;             //@ inout f64[256]
    int32_t B;                     //@ rows drawn, the grid
    int32_t blocks;                //@ ceil(capacity / 256)
} per_priority_upper_args;

/* Stores E transitions, one per environment. Grid (E,), block (32,). */
typedef struct {
    const replay_state *ring;      //@ in replay_state[1]
    const int32_t *action;         //@ in i32[E]
    const float *reward;           //@ in f32[E]
    const int32_t *ended;          //@ in i32[E]                        ENDED_* bits
    const float *state;            //@ in f32[E*(S-C)] optional         vector mode
    const float *next_state;       //@ in f32[E*(S-C)] optional         vector mode, read where ended
    const int32_t *feature_row;    //@ in i32[E] optional               market mode
    const int32_t *next_feature_row; //@ in i32[E] optional             market mode
    const float *portfolio;        //@ in f32[E*(P-C)] optional         market mode
    const float *next_portfolio;   //@ in f32[E*(P-C)] optional         market mode
    const int32_t *mirrored;       //@ in i32[E] optional               market mode
    const float *conviction;       //@ in f32[E] optional
    replay_row *rows;              //@ inout replay_row[capacity]
    float *priority;               //@ inout f32[blocks*256]
    float *stored_state;           //@ inout f32[capacity*S] optional   vector mode
    float *final_state;            //@ inout f32[finals*S] optional     vector mode
    int64_t *final_owner;          //@ inout i64[finals] optional       vector mode: number of the row a slot belongs to
    float *stored_portfolio;       //@ inout f32[capacity*2*P] optional market mode
    uint8_t *stored_mirrored;      //@ inout u8[capacity] optional      with mirrored
    float *stored_conviction;      //@ inout f32[capacity] optional     with conviction
    int64_t *evicted;              //@ out i64[E] optional              vector mode: row whose final observation was overwritten, or -1
    const float *context;          //@ in f32[C] if_any                 the last C columns of every state of this moment
    int32_t E;                     //@ environments, the grid
    int32_t capacity;              //@
    int32_t blocks;                //@ ceil(capacity / 256)
    int32_t finals;                //@ capacity of final_state
    int32_t S;                     //@ state width
    int32_t P;                     //@ portfolio values of a state, with the context
    int32_t n_step;                //@
    int32_t lag;                   //@ inserts after which a window is complete: n_step; n_step - 1 in market mode without a context
    int32_t C;                     //@ columns of the context
    uint32_t pad0_;                //@ pad
} replay_insert_args;

/* The sums of every block that replay_insert touched. Grid (recent,), in vector mode (recent + E,), block (32,). */
typedef struct {
    const replay_state *ring;      //@ in replay_state[1]
    const float *priority;         //@ in f32[blocks*256]
    const int64_t *evicted;        //@ in i64[E] optional               vector mode
    double *block_sum;             //@ inout f64[(blocks+255)/256*256]
    int32_t E;                     //@ environments
    int32_t capacity;              //@
    int32_t blocks;                //@ ceil(capacity / 256)
    int32_t recent;                //@ blocks that the rows of the last lag + 1 inserts can lie in
    int32_t n_step;                //@
    int32_t lag;                   //@
} replay_insert_sums_args;

/* The upper sums, then size and position: the end of an insert. Grid (ceil(blocks / 256),), block (32,). */
typedef struct {
    const int32_t *ended;          //@ in i32[E] optional               vector mode: counts the final observations
    const double *block_sum;       //@ in f64[(blocks+255)/256*256]
    double *super_sum;             //@ inout f64[256] optional
    replay_state *ring;            //@ inout replay_state[1]
    int32_t E;                     //@ environments
    int32_t capacity;              //@
    int32_t blocks;                //@ ceil(capacity / 256)
    uint32_t pad0_;                //@ pad
} replay_advance_args;

/* Discounted returns as they come in, one an environment, into their moments. Grid (1,), any block. */
typedef struct {
    const float *reward;           //@ in f32[E]
    const int32_t *ended;          //@ in i32[E]                        ENDED_* bits
    const control_block *control;  //@ in control_block[1]              gamma
    double *running;               //@ inout f64[E]                     G of each environment; 0 where an episode begins
    return_stats *returns;         //@ inout return_stats[1]
    int32_t E;                     //@ environments
    uint32_t pad0_;                //@ pad
} replay_returns_args;

/* Grid (R,), any block. */
typedef struct {
    const float *context;  //@ in f32[C]
    float *state;          //@ inout f32[R*Sp]   (R, Sp)
    int32_t R;             //@ rows
    int32_t Sp;            //@ floats of a row, at least at + C
    int32_t at;            //@ first column
    int32_t C;             //@ columns
} append_context_args;

/* Grid (1,), any block. */
typedef struct {
    const float *reward;           //@ in f32[E]          raw
    const int32_t *ended;          //@ in i32[E]          ENDED_* bits
    double *account;               //@ inout f64[E*2]     (E, 2) sum of the episode's rewards, its peak, >= 0
    double *drawdown;              //@ out f64[1]         mean of peak - sum where the episode goes on
    int32_t E;                     //@ environments
    uint32_t pad0_;                //@ pad
} replay_drawdown_args;

/* Empties the ring: priorities, sums and counts. Grid (blocks,), block (32,). */
typedef struct {
    float *priority;               //@ out f32[blocks*256]
    double *block_sum;             //@ inout f64[(blocks+255)/256*256]
    double *super_sum;             //@ inout f64[256] optional
    replay_state *ring;            //@ out replay_state[1]
    return_stats *returns;         //@ out return_stats[1] optional
    double *running;               //@ out f64[slots] optional          slots <= 256 * blocks
    int32_t blocks;                //@ ceil(capacity / 256)
    int32_t slots;                 //@ 0 without running
} replay_clear_args;

/* The windows of L states that end in the s and s' of the rows drawn: states of the same episode, as far back as the ring still
 * holds them. Behind per_sample. Grid (2*B,): s of every row, then s'. */
typedef struct {
    const replay_state *ring;      //@ in replay_state[1]
    const replay_row *rows;        //@ in replay_row[capacity]
    const float *state;            //@ in f32[capacity*S] optional           vector mode
    const float *features;         //@ in f32[bars*table] optional           market mode
    const float *portfolio;        //@ in f32[capacity*2*P] optional         market mode
    const uint8_t *mirrored;       //@ in u8[capacity] optional              market mode: as per_sample has it
    const float *sign;             //@ in f32[S] optional                    with mirrored
    const int32_t *batch_index;    //@ in i32[B]                             as per_sample leaves it
    const float *batch_state;      //@ in f32[B*Sp]                          the last state of each window
    const float *batch_next_state; //@ in f32[B*Sp]
    float *window;                 //@ out f32[B*L*Sp]    (B, L, Sp)         of s, oldest first; zero before the first state held
    float *next_window;            //@ out f32[B*L*Sp]    (B, L, Sp)         of s'
    int32_t *length;               //@ out i32[B]                            states held, 1 to L
    int32_t *next_length;          //@ out i32[B]
    int32_t B;                     //@ rows drawn
    int32_t L;                     //@ states of a window
    int32_t capacity;              //@
    int32_t bars;                  //@ rows of the feature table
    int32_t S;                     //@ state width
    int32_t Sp;                    //@ padded state width
    int32_t F;                     //@ features of a state
    int32_t P;                     //@ portfolio values of a state
    int32_t table;                 //@ floats in a row of the table
    int32_t n_step;                //@
    int32_t goal;                  //@ first of the columns that the states before take from the last, with
    int32_t goal_width;            //@ 0: none
} replay_windows_args;

/* Puts a state behind each environment's window of the last L. Grid (E,), any block. after may be before. */
typedef struct {
    const float *before;           //@ in f32[E*L*Sp]     (E, L, Sp)         oldest first
    const int32_t *length_before;  //@ in i32[E]                             states held, 0 to L
    const float *state;            //@ in f32[E*S]        (E, S)             S: the state's width with or without padding
    const int32_t *fresh;          //@ in i32[E] optional                    not 0: the state begins an episode
    const int32_t *ended;          //@ in i32[E] optional                    not 0: the state ended its episode, the window is emptied
    const float *context;          //@ in f32[C] if_any                      columns behind those of state
    float *after;                  //@ out f32[E*L*Sp]
    int32_t *length_after;         //@ out i32[E]
    int32_t E;                     //@ environments
    int32_t L;                     //@ states of a window
    int32_t S;                     //@ floats of a row of state, at most Sp
    int32_t Sp;                    //@ floats of a row of a window
    int32_t C;                     //@ columns of the context
    uint32_t pad0_;                //@ pad
} window_push_args;
