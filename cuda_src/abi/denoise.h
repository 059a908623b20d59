/* Denoising: noised rows of the batch, and a head that says what they were before: cuda_src/heads/denoise.cu. */

/* Columns of a noised row's report; the first DENOISE_METRICS are averaged. */
#define DENOISE_LOSS 0  /* squared error of the reconstruction, mean over the state */
#define DENOISE_NOISE 1 /* square of the noise that was added, mean over the state */
#define DENOISE_COLUMNS 2

/* Copies a row drawn and adds noise to its state, a block a row. Grid (H,). */
typedef struct {
    const step_block *step;         //@ in step_block[1]                  seed, rng_step
    const float *drawn_state;       //@ in f32[B*Sp]     (B, Sp)
    const float *drawn_next_state;  //@ in f32[B*Sp]
    const float *drawn_return;      //@ in f32[B]
    const float *drawn_discount;    //@ in f32[B]
    const float *drawn_priority;    //@ in f32[B]
    const int32_t *drawn_action;    //@ in i32[B]
    const int32_t *drawn_index;     //@ in i32[B]
    float *batch_state;             //@ out f32[H*Sp]    (H, Sp)          pads zero
    float *batch_next_state;        //@ out f32[H*Sp]
    int32_t *batch_action;          //@ out i32[H]
    float *batch_return;            //@ out f32[H]
    float *batch_discount;          //@ out f32[H]
    int32_t *batch_index;           //@ out i32[H]
    float *batch_priority;          //@ out f32[H]
    int32_t *source;                //@ out i32[H]                        row of the batch that was copied
    int32_t H;                      //@ rows to write, the grid
    int32_t B;                      //@ rows drawn
    int32_t S;                      //@ state width
    int32_t Sp;                     //@ padded state width
    float sigma;                    //@ deviation of the noise
    uint32_t pad0_;                 //@ pad
} denoise_rows_args;

/* Squared error of the head's output against the clean state. Grid (H,), any block. */
typedef struct {
    const float *output;         //@ in f32[H*Np]     (H, Np) reconstruction
    const float *noised;         //@ in f32[H*Sp]     (H, Sp)
    const float *clean;          //@ in f32[B*Sp]     (B, Sp) the rows drawn
    const int32_t *source;       //@ in i32[H]
    float *doutput;              //@ out f32[H*Np]    (H, Np) gradient by the output, pads zero
    float *rows;                 //@ out f32[H*2]     (H, DENOISE_COLUMNS)
    int32_t H;                   //@ rows
    int32_t B;                   //@ rows drawn
    int32_t S;                   //@ state width
    int32_t Sp;                  //@ padded state width
    int32_t Np;                  //@ padded width of the output, at most Sp
    uint32_t pad0_;              //@ pad
} denoise_loss_args;

/* Squared norm of each row of dx. Grid (H,), any block. */
typedef struct {
    const float *dx;  //@ in f32[H*Hp]     (H, Hp)
    float *norms;     //@ out f32[H]
    int32_t H;        //@ rows
    int32_t Hp;       //@ width of the trunk's output
} denoise_norms_args;

/* dtrunk = scale * weight * dx, scale so that the norm is at most its share of the gradient budget. Grid any, any block. */
typedef struct {
    const float *dx;         //@ in f32[H*Hp]         (H, Hp)
    const float *norms;      //@ in f32[H] optional   squared norm of each row; null: made from dx
    const step_block *step;  //@ in step_block[1]     grad_budget; 0: no bound
    float *dtrunk;           //@ out f32[H*Hp]        (H, Hp)
    float *scale;            //@ out f32[1]           factor of the budget; 0 where the norm is not finite
    float share;             //@ of the budget
    float weight;            //@ of the loss on the trunk
    int32_t H;               //@ rows
    int32_t Hp;              //@ width of the trunk's output
} denoise_trunk_args;
