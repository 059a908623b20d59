/* Tiny kernels that keep the focus on the runtime: used by the driver conformance suite, the runtime's tests and the
 * tutorial. */

typedef struct {
    uint64_t unused; //@ a kernel has one argument, also this one
} empty_args;

typedef struct {
    float *x;       //@ inout f32[n]
    float value;    //@ added to each element
    int32_t n;      //@ elements
} add_scalar_args;

typedef struct {
    const float *x; //@ in f32[n]
    float *sum;     //@ out f32[1]
    int32_t n;      //@ elements, >= 1
    uint32_t pad0_; //@ pad
} sum_args;

typedef struct {
    const float *x; //@ in f32[rows*cols]
    float *y;       //@ out f32[rows*cols]   y = x reversed within each block of blockDim.x elements
    int32_t rows;   //@ one block a row
    int32_t cols;   //@ = blockDim.x
} reverse_rows_args;

typedef struct {
    const float *x; //@ in f32[n]
    float *y;       //@ out f32[n/32]   one warp a sum, by shuffles
    int32_t n;      //@ multiple of 32
    uint32_t pad0_; //@ pad
} warp_sum_args;
