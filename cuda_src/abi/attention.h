/* The attention block in front of the trunk (docs/step/attention.md): the present state asks, the window's states answer. H heads of
 * D channels, I = H*D. A row of kv: keys (I), values (I), pads. */

#define ATTENTION_STATS 4 /* of a row: squares of what was added and of the state, weight of the present state, entropy */

/* o = sum_t softmax_t(q . k_t / sqrt(D) - slope_h (L-1-t)) v_t over the states held; out begins as the state, to which out_proj is
 * then added. Grid (R, passes), block (threads). */
typedef struct {
    const float *q;          //@ in f32[passes*R*Ip]       (passes, R, Ip)
    const float *kv;         //@ in f32[passes*R*L*Kv]     (passes, R, L, Kv)
    const float *x0;         //@ in f32[R*Sp]              (R, Sp) the state in pass 0
    const float *x1;         //@ in f32[(passes+1)/3*R*Sp] if_any
    const float *x2;         //@ in f32[passes/3*R*Sp] if_any
    const int32_t *length0;  //@ in i32[R]                 states in the windows of pass 0, 1 to L; else the nearest
    const int32_t *length1;  //@ in i32[(passes+1)/3*R] if_any     of the passes behind it
    float *weight;           //@ out f32[passes*R*L*H]     (passes, R, L, H) softmax; 0 where no state is held
    float *o;                //@ out f32[passes*R*Ip]      (passes, R, Ip) out_proj's input
    float *out;              //@ out f32[passes*R*Sp]      (passes, R, Sp)
    int32_t passes;          //@ 1 to 3, = gridDim.y
    int32_t R;               //@ rows, = gridDim.x
    int32_t L;               //@ positions
    int32_t Sp;              //@ floats of a state
    int32_t H;               //@ heads
    int32_t D;               //@ channels of a head
    int32_t Ip;              //@ floats of a row of q and o
    int32_t Kv;              //@ floats of a row of kv
} attention_args;

/* The way back in pass 0, from the gradient by o to those by q and kv. Grid (R). */
typedef struct {
    const float *q;          //@ in f32[R*Ip]       (R, Ip)
    const float *kv;         //@ in f32[R*L*Kv]     (R, L, Kv)
    const float *weight;     //@ in f32[R*L*H]      (R, L, H)
    const float *d_o;        //@ in f32[R*Ip]       (R, Ip)
    const float *x;          //@ in f32[R*Sp]       (R, Sp) the state
    const float *out;        //@ in f32[R*Sp]       (R, Sp) what the block made of it
    const int32_t *length;   //@ in i32[R]          1 to L; else the nearest
    float *dq;               //@ out f32[R*Ip]      (R, Ip)
    float *dkv;              //@ out f32[R*L*Kv]    (R, L, Kv)
    float *stats;            //@ out f32[R*4]       (R, ATTENTION_STATS)
    int32_t R;               //@ rows, = gridDim.x
    int32_t L;               //@ positions
    int32_t Sp;              //@ floats of a state
    int32_t H;               //@ heads
    int32_t D;               //@ channels of a head
    int32_t Ip;              //@ floats of a row of q and o
    int32_t Kv;              //@ floats of a row of kv
    uint32_t pad0_;          //@ pad
} attention_backward_args;

/* The metrics from the rows'. Grid (1). */
typedef struct {
    const float *stats;    //@ in f32[R*4]    (R, ATTENTION_STATS)
    float *metrics;        //@ out f32[3]     ratio, present, entropy
    int32_t R;             //@ rows
    uint32_t pad0_;        //@ pad
} attention_metrics_args;
