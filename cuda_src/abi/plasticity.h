/* What happens to parameters between epochs, pruning and shrink-and-perturb, and the pruning mask in the step:
 * cuda_src/optim/plasticity.cu. */

typedef struct {
    float *grad;            //@ inout f32[n]       gradient; its first `masked` elements are multiplied by the mask
    const float *mask;      //@ in f32[masked]     0 or 1
    const uint32_t *pruned; //@ in u32[1]          zeros of the mask; 0: nothing is changed
    double *norm_part;      //@ out f64[parts]     squares of the masked gradient
    float *sparsity;        //@ out f32[1]         pruned / prunable
    int64_t n;              //@ elements, multiple of 16
    int64_t masked;         //@ of them under the mask, multiple of 16
    int32_t blocks;         //@ = gridDim.x, at most parts
    int32_t per_block;      //@ elements a block owns, multiple of 16
    int32_t parts;          //@ partial sums of squares of these elements
    int32_t prunable;       //@ parameters under the mask, without pads
} prune_gradient_args;

typedef struct {
    float *buffer;      //@ inout f32[n]   zeroed where the mask is 0
    const float *mask;  //@ in f32[n]
    int64_t n;          //@ multiple of 16
    int32_t per_block;  //@ elements a block owns, multiple of 16
    uint32_t pad0_;     //@ pad
} prune_apply_args;

typedef struct {
    float *theta;                //@ inout f32[rows*Np]            one segment of the parameters
    const float *mask;           //@ in f32[rows*Np] optional      noise where it is 1; null: everywhere
    const control_block *control; //@ in control_block[1]          seed
    const train_state *state;    //@ in train_state[1]             Philox counter
    int64_t first;               //@ element of the flat buffer that the segment begins at
    float shrink;                //@ lambda
    float sigma;                 //@ deviation of the noise
    int32_t rows;                //@ rows without padding
    int32_t N;                   //@ columns without padding
    int32_t Np;                  //@ columns
    int32_t per_block;           //@ elements without padding that a block owns
} shrink_perturb_args;
