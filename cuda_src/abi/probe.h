/* Kernels of `foxhunt-rt probe` and of `profile`: what is measured with, never part of a training step. */

typedef struct {
    uint64_t ns; //@ nanoseconds to keep the device busy
} spin_args;

typedef struct {
    const float *x; //@ in f32[n]
    float *y;       //@ out f32[1]
    int32_t n;      //@ elements, >= 1
    int32_t rounds; //@ steps through the frame
} walk_stack_args;

typedef struct {
    const float *x;   //@ in f32[n]
    uint32_t *count;  //@ inout u32[1]   how often it has run
    float *sums;      //@ out f32[capacity]   the sum of run k stands at k % capacity
    int32_t n;        //@ elements, >= 1
    int32_t capacity; //@ entries of sums
} checksum_args;

typedef struct {
    const float *x; //@ in f32[rows*inner]
    const float *w; //@ in f32[inner*cols]
    float *y;       //@ out f32[rows*cols]   y = x w
    int32_t rows;   //@ >= 1
    int32_t inner;  //@ >= 1
    int32_t cols;   //@ >= 1
    uint32_t pad0_; //@ pad
} naive_product_args;
