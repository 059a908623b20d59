/* What stands around a library's matrix products: bias and ReLU where the library cannot fuse them, the gradient of ReLU
 * with the column sums, and operands rounded to fewer bits. Np: multiple of 16. bf16 is rounded to nearest, ties to even. */

#define GRADIENT_COLS 64 /* columns a block of gradient_rows owns */

/* y = act(y + bias), in place. */
typedef struct {
    float *y;             //@ inout f32[R*Np]    (R, Np)
    const float *bias;    //@ in f32[Np]         (Np,)
    int32_t R;            //@ rows
    int32_t Np;           //@ columns
    int32_t relu;         //@ 0: linear, 1: max(y, 0), NaN stays NaN
    int32_t per_block;    //@ elements a block owns, multiple of 16
} bias_relu_args;

typedef struct {
    uint16_t *y;             //@ inout bf16[R*Np]    (R, Np)
    const uint16_t *bias;    //@ in bf16[Np]         (Np,)
    int32_t R;               //@ rows
    int32_t Np;              //@ columns
    int32_t relu;            //@ 0: linear, 1: max(y, 0), NaN stays NaN
    int32_t per_block;       //@ elements a block owns, multiple of 16
} bias_relu_bf16_args;

/* y = x + sum of more where h > 0 (or h is NaN), else 0; part[z] = column sums of y over the rows of split z. y may be x. */
typedef struct {
    const float *x;    //@ in f32[R*Np]               (R, Np)
    const float *h;    //@ in f32[R*Np] optional      (R, Np) output of the ReLU; null: y = x
    const float *more;  //@ in f32[heads*R*Np] if_any     (heads, R, Np) gradients of other heads
    float *y;          //@ out f32[R*Np] optional     (R, Np); null: sums alone
    float *part;       //@ out f32[splits*Np] optional    (splits, Np); null: no sums
    int32_t R;         //@ rows
    int32_t Np;        //@ columns
    int32_t splits;    //@ = gridDim.y
    int32_t heads;     //@ of more
} gradient_rows_args;

typedef struct {
    const uint16_t *x;    //@ in bf16[R*Np]               (R, Np)
    const uint16_t *h;    //@ in bf16[R*Np] optional      (R, Np)
    const float *more;  //@ in f32[heads*R*Np] if_any     (heads, R, Np) gradients of other heads
    uint16_t *y;          //@ out bf16[R*Np] optional     (R, Np)
    float *part;          //@ out f32[splits*Np] optional    (splits, Np)
    int32_t R;            //@ rows
    int32_t Np;           //@ columns
    int32_t splits;       //@ = gridDim.y
    int32_t heads;        //@ of more
} gradient_rows_bf16_args;

/* y = x in bf16; part[z] = column sums of x over the rows of split z. */
typedef struct {
    const float *x;    //@ in f32[R*Np]               (R, Np)
    uint16_t *y;       //@ out bf16[R*Np]             (R, Np)
    float *part;       //@ out f32[splits*Np] optional    (splits, Np)
    int32_t R;         //@ rows
    int32_t Np;        //@ columns
    int32_t splits;    //@ = gridDim.y
    uint32_t pad0_;    //@ pad
} gradient_to_bf16_args;

/* The bf16 operands of a step: parameters of the three passes, and their inputs. */
typedef struct {
    const float *theta;     //@ in f32[n]             (n,) online parameters
    const float *target;    //@ in f32[n]             (n,) target parameters
    const float *x0;        //@ in f32[m]             (B, Sp) s
    const float *x1;        //@ in f32[m]             (B, Sp) s'
    const float *x2;        //@ in f32[m]             (B, Sp) s' for the target network: x1 again unless a block stands before the trunk
    uint16_t *w;            //@ out bf16[3*n]         (3, n) theta, theta, target
    uint16_t *x;            //@ out bf16[3*m]         (3, B, Sp) s, s', s'
    float *bias;            //@ out f32[3*n_bias]     (3, n_bias) biases of the heads, not rounded
    int64_t n;              //@ multiple of 16
    int64_t m;              //@ multiple of 16
    int64_t bias_at;        //@ where the biases of the heads stand in theta, multiple of 16
    int32_t n_bias;         //@ multiple of 16
    int32_t per_block;      //@ elements of n + m that a block owns, multiple of 16
} round_inputs_args;

/* y = x rounded to `bits` bits of mantissa, in f32: 10 as TF32, 7 as bf16. y may be x. */
typedef struct {
    const float *x;       //@ in f32[n]     (n,)
    float *y;             //@ out f32[n]    (n,)
    int64_t n;            //@ multiple of 16
    int32_t per_block;    //@ elements a block owns, multiple of 16
    int32_t bits;         //@ 1 to 22
} round_mantissa_args;
