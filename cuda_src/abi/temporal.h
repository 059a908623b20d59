/* The Mamba-2 block in front of the trunk (docs/step/temporal.md). H heads of D channels, I = H*D; N state channels; C = I + 2N
 * channels under the convolution of width W. A row of proj: x (I), B (N), C (N), dt (H), pads. The small parameters stand side by
 * side, at the offsets given: convolution (W, Cp), its bias (Cp), dt_bias (Hp), a_log (Hp), d (Hp), norm (Ip). */

#define TEMPORAL_STATS 4 /* sums over a block's rows: squares of what was added and of the state, share of memory, length */

/* y at the last position of each window, gated and normalized; out begins as the state, to which out_proj is then added. */
typedef struct {
    const float *proj;       //@ in f32[passes*R*L*Wp]         (passes, R, L, Wp)
    const float *z;          //@ in f32[passes*R*Ip]           (passes, R, Ip) the gate's input
    const float *x0;         //@ in f32[R*Sp]                  (R, Sp) the state in pass 0
    const float *x1;         //@ in f32[(passes+1)/3*R*Sp] if_any
    const float *x2;         //@ in f32[passes/3*R*Sp] if_any
    const int32_t *length0;  //@ in i32[R]                     states in the windows of pass 0, 1 to L; else the nearest
    const int32_t *length1;  //@ in i32[(passes+1)/3*R] if_any     of the passes behind it
    const float *theta;      //@ in f32[P]                     small parameters
    const float *target;     //@ in f32[passes/3*P] if_any     those of pass 2
    float *out;              //@ out f32[passes*R*Sp]          (passes, R, Sp)
    float *gated;            //@ out f32[passes*R*Ip]          (passes, R, Ip) out_proj's input
    float *y;                //@ out f32[passes*R*Ip]          (passes, R, Ip) before the gate
    float *memory;           //@ out f32[passes*R]             (passes, R) share of the weight before the last position
    int32_t passes;          //@ 1 to 3, = gridDim.y
    int32_t R;               //@ rows, = gridDim.x
    int32_t L;               //@ positions
    int32_t Sp;              //@ floats of a state
    int32_t H;               //@ heads
    int32_t D;               //@ channels of a head
    int32_t N;               //@ state channels
    int32_t W;               //@ width of the convolution
    int32_t Wp;              //@ floats of a row of proj
    int32_t Ip;              //@ floats of a row of z, gated, y
    int32_t Cp;              //@ floats of a row of the convolution
    int32_t P;               //@ small parameters
    int32_t bias_at;         //@ offsets in them
    int32_t dt_at;           //@
    int32_t a_at;            //@
    int32_t d_at;            //@
    int32_t norm_at;         //@
    int32_t tile;            //@ positions whose activations a block holds at once
} mamba_scan_args;

/* The way back in pass 0: from the gradient by gated to those by proj, z and the small parameters. Block b owns rows
 * [b*rows_per_block, (b+1)*rows_per_block). */
typedef struct {
    const float *proj;       //@ in f32[R*L*Wp]     (R, L, Wp)
    const float *z;          //@ in f32[R*Ip]       (R, Ip)
    const float *y;          //@ in f32[R*Ip]       (R, Ip)
    const float *dgated;     //@ in f32[R*Ip]       (R, Ip)
    const float *x;          //@ in f32[R*Sp]       (R, Sp) the state
    const float *out;        //@ in f32[R*Sp]       (R, Sp) what the block made of it
    const float *memory;     //@ in f32[R]
    const int32_t *length;   //@ in i32[R]          1 to L; else the nearest
    const float *theta;      //@ in f32[P]          small parameters
    float *dproj;            //@ out f32[R*L*Wp]    (R, L, Wp)
    float *dz;               //@ out f32[R*Ip]      (R, Ip)
    float *partial;          //@ out f32[blocks*P]  (blocks, P) gradient of the small parameters over a block's rows
    float *stats;            //@ out f32[blocks*4]  (blocks, TEMPORAL_STATS)
    int32_t R;               //@ rows
    int32_t blocks;          //@ = gridDim.x
    int32_t rows_per_block;  //@
    int32_t L;               //@ positions
    int32_t Sp;              //@ floats of a state
    int32_t H;               //@ heads
    int32_t D;               //@ channels of a head
    int32_t N;               //@ state channels
    int32_t W;               //@ width of the convolution
    int32_t Wp;              //@ floats of a row of proj
    int32_t Ip;              //@ floats of a row of z, y
    int32_t Cp;              //@ floats of a row of the convolution
    int32_t P;               //@ small parameters
    int32_t bias_at;         //@ offsets in them
    int32_t dt_at;           //@
    int32_t a_at;            //@
    int32_t d_at;            //@
    int32_t norm_at;         //@
    int32_t tile;            //@ positions whose activations a block holds at once
    uint32_t pad0_;          //@ pad
} mamba_scan_backward_args;

/* The metrics from the sums of the blocks. Grid (1). */
typedef struct {
    const float *stats;    //@ in f32[blocks*4]   (blocks, TEMPORAL_STATS)
    float *metrics;        //@ out f32[3]         ratio, memory, length
    int32_t blocks;        //@
    int32_t R;             //@ rows
    int32_t L;             //@ positions
    uint32_t pad0_;        //@ pad
} temporal_metrics_args;
