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
    uint32_t *count;  //@ inout u32[1]   how often it has run: with the seed, what decides how long it takes
    uint32_t seed;    //@ of the delays
    uint32_t most_ns; //@ nanoseconds of the longest
} delay_args;

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

typedef struct {
    int32_t *counter; //@ inout i32[1]   counts down; the condition stays set while it is positive
    uint64_t handle;  //@ of a conditional node
} countdown_args;

typedef struct {
    uint64_t handle; //@ of a conditional node
    uint32_t value;  //@ given to it
    uint32_t pad0_;  //@ pad
} set_condition_args;

typedef struct {
    int32_t *out; //@ out i32[1]   how often this copy of the module has run bump_global
} bump_global_args;

typedef struct {
    const float *x; //@ in f32[?]
    float *y;       //@ out f32[?]   y[to] = x[from] + value; the indices may lie outside on purpose
    int64_t from;   //@ index
    int64_t to;     //@ index
    float value;    //@ added
    uint32_t pad0_; //@ pad
} copy_element_args;

typedef struct {
    int32_t *out;      //@ out i32[blocks*3]   per block: __syncthreads_count, _or, _and of (thread < limit)
    int32_t blocks;    //@ gridDim.x
    int32_t limit;     //@ threads below it vote yes
} block_votes_args;

typedef struct {
    int32_t *out;  //@ out i32[5*32]   rows: ballot, shuffle up by 1, down by 1, from lane 3 in segments of 8, half-warp vote
    uint32_t bits; //@ lane l votes bit l
    uint32_t pad0_; //@ pad
} warp_votes_args;

typedef struct {
    int32_t *last; //@ out i32[1]   the thread that wrote last: depends on the order of execution, on purpose
} last_writer_args;

typedef struct {
    float *y;       //@ out f32[1]
    int32_t skip;   //@ threads below it leave before the barrier: undefined on a GPU, an error on hostsim
    uint32_t pad0_; //@ pad
} divergent_barrier_args;

typedef struct {
    uint64_t *payload;  //@ out u64[1]   mapped memory
    uint64_t *sequence; //@ out u64[1]   mapped memory, written after the payload
    uint64_t value;     //@ written to both
} publish_word_args;

typedef struct {
    const float *x; //@ in f32[rows*n]
    float *y;       //@ out f32[rows*7]   maximum, minimum, argmax: value and index, a warp's maximum, sum of the softmax, seeded maximum
    int32_t rows;   //@ one block a row
    int32_t n;      //@ values of a row, >= 1
} reduce_probe_args;

typedef struct {
    const float *x; //@ in f32[n]
    float *y;       //@ out f32[n]   y[i] = the neighbour's x, by way of shared memory without a barrier: a race, on purpose
    int32_t n;      //@ = blockDim.x, at most 1024
    uint32_t pad0_; //@ pad
} race_shared_args;

typedef struct {
    float *y;       //@ out f32[1]   every block stores its number here: a race between blocks, on purpose
    int32_t blocks; //@ = gridDim.x
    int32_t rounds; //@ stores of each block
} race_blocks_args;

typedef struct {
    float *y; //@ out f32[1]
} wrong_mask_args;

typedef struct {
    float *y;       //@ out f32[n]
    int32_t n;      //@ = blockDim.x, even, at most 1024
    uint32_t pad0_; //@ pad
} split_barrier_args;
