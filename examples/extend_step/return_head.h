typedef struct {
    const float *x;         //@ in f32[B*Hp]     (B, Hp) the trunk's output on s
    const float *w;         //@ in f32[Hp*16]    (Hp, 16) weights of the head: column 0 is its one output
    const float *bias;      //@ in f32[16]
    const float *ret;       //@ in f32[B]        n-step return, the label
    float *dx;              //@ out f32[B*Hp]    gradient by x
    float *dw;              //@ out f32[Hp*16]
    float *dbias;           //@ out f32[16]
    float *mse;             //@ out f32[1]       mean squared error
    float coefficient;      //@ weight of the loss
    int32_t B;              //@ rows, at most 4096
    int32_t Hp;             //@ width of the trunk, padded
    uint32_t pad0_;         //@ pad
} return_head_args;
