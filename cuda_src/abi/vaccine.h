/* Gradient vaccine: cuda_src/optim/vaccine.cu. All three kernels return at once on steps on which they are not due. */

typedef struct {
    const float *grad;       //@ in f32[n]           the gradient of this step
    const float *previous;   //@ in f32[n]           that of the step before, unclipped
    const step_block *step;  //@ in step_block[1]
    double *part;            //@ out f64[3*blocks]   by block: <g, p>, |g|^2, |p|^2
    int64_t n;               //@ elements, multiple of 16
    int32_t blocks;          //@ = gridDim.x
    int32_t per_block;       //@ elements a block owns, multiple of 16
} vaccine_dots_args;

typedef struct {
    float *grad;            //@ inout f32[n]
    const float *previous;  //@ in f32[n]
    const double *part;     //@ in f64[3*blocks]
    double *norm_part;      //@ out f64[parts]    squares of the changed gradient; left alone where nothing changes
    const step_block *step; //@ in step_block[1]
    float *target;          //@ inout f32[2]      running target of the cosine: one is read, the other written, in turn
    float *cosine;          //@ out f32[1]        of this vaccine
    float *now;             //@ out f32[1]        the target after it
    float *added;           //@ out f32[1]        length of what was added, in lengths of the gradient; 0: nothing
    int64_t n;              //@ elements, multiple of 16
    int32_t blocks;         //@ = gridDim.x, at most parts
    int32_t per_block;      //@ elements a block owns, multiple of 16
    int32_t parts;          //@ partial sums of squares of these elements
    uint32_t period;        //@ steps from one vaccine to the next
    float rate;             //@ share of the new cosine in the running target
    float target_max;       //@ the target never exceeds this, below 1
} vaccine_apply_args;

typedef struct {
    const float *grad;       //@ in f32[n]          as clip and optimizer saw it
    const step_block *step;  //@ in step_block[1]
    float *previous;         //@ out f32[n]
    int64_t n;               //@ elements, multiple of 16
    int32_t per_block;       //@ elements a block owns, multiple of 16
    uint32_t pad0_;          //@ pad
} vaccine_keep_args;
