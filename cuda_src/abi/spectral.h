/* Bound of the largest singular value of weight matrices, all of them in three launches: cuda_src/optim/spectral.cu. */

/* Columns that a block of spectral_columns owns. */
#define SPECTRAL_COLUMNS 16

typedef struct {
    const float *theta;               //@ in f32[n]               flat parameters
    const spectral_matrix *matrices;  //@ in spectral_matrix[M]   in ascending order of their first blocks
    const float *v;                   //@ in f32[V]               right singular vectors, unit length, pads zero
    float *u;                         //@ out f32[U]              W v
    int64_t n;                        //@ parameters
    int32_t M;                        //@ matrices
    int32_t U;                        //@ rows of all matrices
    int32_t V;                        //@ columns of all matrices
    int32_t rows;                     //@ rows a block owns
} spectral_rows_args;

typedef struct {
    const float *theta;               //@ in f32[n]
    const spectral_matrix *matrices;  //@ in spectral_matrix[M]
    const float *u;                   //@ in f32[U]               of any length
    float *s;                         //@ out f32[V]              W^T u / |u|
    int64_t n;                        //@ parameters
    int32_t M;                        //@ matrices
    int32_t U;                        //@ rows of all matrices
    int32_t V;                        //@ columns of all matrices
    uint32_t pad0_;                   //@ pad
} spectral_columns_args;

typedef struct {
    float *theta;                     //@ inout f32[n]            matrices with sigma above sigma_max are scaled down to it
    const spectral_matrix *matrices;  //@ in spectral_matrix[M]
    const float *s;                   //@ in f32[V]               W^T u / |u|
    float *v;                         //@ inout f32[V]            s / |s|; as it was where that is 0 or not finite
    float *sigma;                     //@ out f32[M]              |s|, the estimate before the projection
    float *largest;                   //@ out f32[1]              of them; NaN is kept
    float *projected;                 //@ out f32[1]              share of the matrices that were above sigma_max
    int64_t n;                        //@ parameters
    float sigma_max;                  //@ the bound, above 0
    int32_t M;                        //@ matrices
    int32_t V;                        //@ columns of all matrices
    int32_t per_block;                //@ elements a block owns, multiple of 16
} spectral_project_args;
