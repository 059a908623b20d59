/* Structs that live in device or mapped memory and are shared by several kernels. Parsed first, before the other
 * headers of this folder. Read by nvcc, g++ and cffi: typedef structs of fixed-width scalars and pointers, padding
 * written out, plain integer #defines, nothing else. */

/* Philox consumer ids (lib/philox.h): one a purpose, so that no two draws share a counter. */
#define RNG_SAMPLE 1
#define RNG_EXPLORE 2
#define RNG_IQN 3
#define RNG_DEPTH 4
#define RNG_HER 5
#define RNG_NOISE 6
#define RNG_INIT 7
#define RNG_MARKET 8

/* What the host may change between launches. Lives in device memory; an ungraphed one-thread kernel of its own module
 * applies a change in stream order, and counters latches from it once a step. */
typedef struct {
    uint64_t seed;
    uint64_t horizon;        /* T of the schedules, in steps */
    uint64_t restart_period; /* of the cosine learning rate, in steps; 0: no restarts */
    float lr;
    float lr_min;
    float adam_beta1;
    float adam_beta2;
    float adam_eps;
    float weight_decay;
    float max_grad_norm;     /* clip of the global norm */
    float tau_start;         /* Polyak */
    float tau_end;
    float gamma;
    float beta_per_start;
    float beta_per_end;
    float alpha_per;
    float eps_per;
    float alpha_c51;         /* share of the cross-entropy in the loss */
    float label_smoothing;
    float grad_budget;       /* G of the gradient budget; 0: off */
    float reward_scale;      /* normalized reward = raw reward * reward_scale */
    float v_min;             /* support of the return distribution, in normalized reward */
    float v_max;
    float q_clip;            /* alarm, not a fault, when |Q| is above */
    float restart_momentum;  /* factor on Adam's first moment at a warm restart */
} control_block;

/* Counters that advance with every step. */
typedef struct {
    uint64_t step;      /* steps begun so far */
    uint64_t rng_step;  /* Philox counter word */
    uint64_t adam_step; /* t of Adam's bias correction */
} train_state;

/* Latched by counters once a step; every other kernel of the step reads it. */
typedef struct {
    uint64_t seed;
    uint64_t step;         /* index of this step, from 0 */
    uint64_t rng_step;
    uint64_t started_ns;   /* %globaltimer at the start of the step (volatile: left out of verification) */
    float lr;
    float adam_beta1;
    float adam_beta2;
    float adam_eps;
    float weight_decay;
    float bias1;           /* 1 - beta1^t */
    float bias2;           /* 1 - beta2^t */
    float momentum_factor; /* 1, but restart_momentum at a warm restart */
    float max_grad_norm;
    float tau;             /* Polyak */
    float gamma;
    float beta_per;
    float alpha_per;
    float eps_per;
    float alpha_c51;
    float label_smoothing;
    float grad_budget;
    float reward_scale;
    float v_min;
    float v_max;
    float delta_z;         /* (v_max - v_min) / (atoms - 1) */
    float q_clip;
    uint32_t min_priority; /* bits of the smallest drawn P_i: positive floats order like their bits */
    uint32_t due;          /* flags of periodic work */
} step_block;

/* The replay ring. */
typedef struct {
    uint64_t inserted;  /* rows ever inserted */
    uint32_t size;      /* rows held, <= capacity */
    uint32_t position;  /* next row to write */
    float max_priority; /* P_max: new rows enter with it */
    uint32_t skipped;   /* non-finite |delta| that were not written */
} replay_state;
