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
#define RNG_PLAN 10

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
    float max_grad_norm; /* clip of the global norm */
    float tau_start;     /* Polyak */
    float tau_end;
    float gamma;
    float beta_per_start;
    float beta_per_end;
    float alpha_per;
    float eps_per;
    float alpha_c51; /* share of the cross-entropy in the loss */
    float label_smoothing;
    float grad_budget;  /* G of the gradient budget; 0: off */
    float reward_scale; /* normalized reward = raw reward * reward_scale */
    float v_min;        /* support of the return distribution, in normalized reward */
    float v_max;
    float q_clip;            /* alarm, not a fault, when |Q| is above */
    float restart_momentum;  /* factor on Adam's first moment at a warm restart */
    float alarm_edge_mass;   /* alarms of the guard: above this share of target mass on the two edge atoms, */
    float alarm_spike_share; /* above this share of spikes among the non-terminal targets, */
    float alarm_atom_use;    /* below this share of the atoms in use */
    float spike_mass;        /* a target is a spike when one atom holds more than this */
    uint32_t vaccine_period; /* steps from one gradient vaccine to the next; 0: none */
    uint32_t causal_period;  /* steps from one causal intervention to the next; 0: none */
} control_block;

/* Counters that advance with every step. */
typedef struct {
    uint64_t step;      /* steps begun so far */
    uint64_t rng_step;  /* Philox counter word */
    uint64_t adam_step; /* t of Adam's bias correction */
} train_state;

/* Bits of step_block.due: periodic work of this step. */
#define DUE_VACCINE 1       /* compares the gradient with that of the step before */
#define DUE_KEEP_GRADIENT 2 /* the next step does */
#define DUE_CAUSAL 4

/* Latched by counters once a step; every other kernel of the step reads it. */
typedef struct {
    uint64_t seed;
    uint64_t step; /* index of this step, from 0 */
    uint64_t rng_step;
    uint64_t started_ns; /* %globaltimer at the start of the step (volatile: left out of verification) */
    uint64_t adam_step;  /* t of Adam's bias correction, from 1 */
    float lr;
    float adam_beta1;
    float adam_beta2;
    float adam_eps;
    float weight_decay;
    float bias1;           /* 1 - beta1^t */
    float bias2;           /* 1 - beta2^t */
    float momentum_factor; /* 1, but restart_momentum at a warm restart */
    float max_grad_norm;
    float tau; /* Polyak */
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
    float delta_z; /* (v_max - v_min) / (atoms - 1) */
    float q_clip;
    float alarm_edge_mass;
    float alarm_spike_share;
    float alarm_atom_use;
    float spike_mass;
    uint32_t min_priority; /* bits of the smallest drawn P_i: positive floats order like their bits */
    uint32_t due;          /* DUE_* bits */
} step_block;

/* What `ended` says of a transition; 0 while the episode goes on. */
#define ENDED_TERMINATED 1 /* no bootstrap */
#define ENDED_TRUNCATED 2  /* bootstrap from the final observation */
#define ENDED_ABSENT 4     /* this environment has no transition this time: the row is never drawn */
#define ENDED_COUNTERFACTUAL 8 /* beside one of the first two: a step that was not taken, an episode of its own */
#define ENDED_BACK_SHIFT 8 /* of such a row the bits from here on: rows back to the step that was taken in its place */

/* The replay ring. Counts from the last clear(), so that a cleared ring behaves as a new one, bit for bit. */
typedef struct {
    uint64_t inserted;  /* rows inserted; row number g stands at g % capacity */
    uint64_t finals;    /* final observations stored; number q stands at q % final capacity (vector mode) */
    uint32_t size;      /* rows held, <= capacity */
    uint32_t position;  /* next row to write */
    float max_priority; /* P_max: new rows enter with it */
    uint32_t skipped;   /* non-finite priorities that were not written */
    uint32_t stride;    /* rows from one transition of an environment to its next: E of the inserts */
    uint32_t pad0_;
} replay_state;

/* Running moments of the discounted returns of all environments since the last clear(): Welford's mean and sum of squared
 * deviations. In raw reward. */
typedef struct {
    uint64_t count;
    double mean;
    double m2;
} return_stats;

/* sigma_G that the returns are divided by, in raw reward: step t reads the slot of t's parity and writes the other, so that
 * every block of one launch sees the same. 0: not set yet. */
typedef struct {
    double sigma_even;
    double sigma_odd;
} popart_state;

/* What the plan head has shown on rows that it was not trained on, and what it has earned by it (docs/step/plan.md). The first
 * three are running means over all rows of a batch, so that their ratios are means over the held-out ones. */
typedef struct {
    float error;     /* (p - y)^2 of the held-out rows */
    float label;     /* y of these */
    float held;      /* share of these */
    float skill;     /* Brier skill score over their base rate, at most 1 */
    float readiness; /* 0 until the skill was positive for long enough, then the skill */
    uint32_t streak; /* steps in a row with positive skill, up to those that it takes */
} plan_state;

/* One stored transition, 32 bytes: one memory sector. States lie in arrays of their own. */
typedef struct {
    int32_t action;           /* mixed radix over the branches, branch 0 slowest */
    float reward;             /* raw, of one step */
    int32_t ended;            /* ENDED_* bits */
    int32_t stride;           /* the next transition of the same environment stands this many rows on */
    uint32_t episode;         /* number of the episode: no two of a ring's share one */
    int32_t feature_row;      /* s in the feature table (market mode) */
    int32_t next_feature_row; /* s' in the feature table (market mode) */
    int32_t final_slot;       /* where the final observation stands, when ended (vector mode) */
} replay_row;

/* How actions are explored; changed in stream order by set_exploration. */
typedef struct {
    float epsilon;     /* per branch, the chance of a uniformly random choice */
    float temperature; /* otherwise: 0 the best action, above 0 Boltzmann, softmax(Q / temperature) */
} explore_block;

/* Costs and scales of the trading environment (docs/environment.md). In device memory, so that they may change between
 * replays. Prices are in ticks, money in the contract's currency. */
typedef struct {
    double tick_value;      /* money a tick and contract: tick size * multiplier */
    double fee;             /* money a contract and side */
    double half_spread;     /* ticks */
    double slippage;        /* ticks, at urgency factor 1 */
    double slippage_range;  /* share of the bar's range, added to slippage before the factor */
    double urgency_passive; /* factors on the slippage */
    double urgency_normal;
    double urgency_aggressive;
    double stop_offset;      /* ticks from the last close to a stop's trigger */
    double drawdown_penalty; /* lambda of the drawdown-penalized reward; 0: net reward */
    double pnl_scale;        /* money that reads 1 in the portfolio features */
    double time_scale;       /* bars in a trade that read 1/2 */
    double goal;             /* return that an episode is to reach, in pnl_scale; read where states have a goal slot */
    int32_t position_limit;  /* contracts */
    uint32_t pad0_;
} market_block;

/* One environment: a walk over the bars [cursor, end), idle when cursor + 1 >= end; and the account of its episode. */
typedef struct {
    double cash;             /* ticks * contracts: what the fills of this episode paid and received */
    double entry;            /* mean fill price of the open position, ticks; 0 when flat */
    double equity;           /* money, net, at the close of bar cursor; 0 at the episode's start */
    double peak;             /* largest equity of the episode, >= 0 */
    int32_t cursor;          /* bar whose close was seen last */
    int32_t end;             /* one past the last bar to execute in */
    int32_t session_last;    /* last bar of the session that bar cursor belongs to */
    int32_t flatten;         /* 1: flat at end as at a session's end (evaluation); 0: truncated there (collection) */
    int32_t position;        /* contracts, signed */
    int32_t traded;          /* contracts of all fills of the episode */
    int32_t bars_in_trade;   /* closes seen with the open position */
    int32_t invalid_actions; /* actions outside the action space, each taken as no order */
    float portfolio[4];      /* portfolio features of the state, as observed: position, unrealized, time, drawdown */
} env_state;

/* What happened in one bar of an evaluation. Zero where no environment came by. */
typedef struct {
    double net;             /* money: change of equity over the bar, net; never scaled, never penalized */
    double cost;            /* money: fees, half-spread and slippage paid */
    double price;           /* ticks: the order's fill; 0 when nothing was filled */
    double exit_price;      /* ticks: the forced exit's fill */
    int32_t contracts;      /* signed contracts of the order's fill */
    int32_t exit_contracts; /* signed contracts of the forced exit at the close */
    int32_t position;       /* contracts held after the bar's close */
    int32_t action;         /* the decision that led here */
    int32_t visited;        /* 1 */
    uint32_t pad0_;
} bar_result;

/* What collection added and turned over for one environment (docs/counterfactual.md), since the pass began. */
typedef struct {
    double difference[6];       /* by cycle: sum of reward of the counterfactual - reward of the step taken, money */
    uint32_t counterfactual[6]; /* rows by cycle */
    uint32_t rows;              /* rows of steps that were taken */
    uint32_t mirrored;          /* rows of both kinds that were stored mirrored */
} augment_counts;

/* Steps of one launch (steps_per_launch), counted on the device. */
typedef struct {
    uint32_t steps; /* of each launch, as set last in stream order */
    uint32_t left;  /* of the running launch, the current one included */
} loop_block;

/* Guard (lib/guard.h): who found it, numbered as in the order of the whole step. */
#define GUARD_COUNTERS 0
#define GUARD_PER_SAMPLE 1
#define GUARD_FORWARD 4
#define GUARD_DDQN 5
#define GUARD_AUX 6
#define GUARD_ADAM_GRAD 8
#define GUARD_ADAM 9
#define GUARD_PER_PRIORITY 12
#define GUARD_PUBLISH 13

/* What was found. */
#define CHECK_NON_FINITE 0
#define CHECK_MASS 1            /* |sum of the projected target - 1| > 1e-6 */
#define CHECK_LOG_PROBABILITY 2 /* a log-probability above 1e-6 */
#define CHECK_Q_RANGE 3         /* |Q| above max|z| (1 + 1e-5): impossible, so a bug */
#define CHECK_EMPTY 4           /* nothing to draw from: the sum of the priorities is not positive */
#define CHECK_PROBABILITIES 5   /* the probabilities of the action taken do not sum to 1 */

/* A fault: child (4 bits), check (4), element (24), bits of the value (32), claimed by an integer minimum. One block for
 * the whole step, declared private by each child: it orders nothing. */
typedef struct {
    uint64_t key; /* all ones: no fault */
} guard_block;

/* Alarms do not stop: steps on which each was raised, ever since the last reset. */
typedef struct {
    uint32_t edge_mass;
    uint32_t spike_share;
    uint32_t q_clip;
    uint32_t atom_use;
} alarm_block;

/* Parameters that share learning rate, clip and step counter: the network is group 0, a head of its own another. */
typedef struct {
    int64_t begin;      /* first element of the flat buffers */
    int64_t decay_end;  /* elements of the group before this index are weights */
    int32_t part_begin; /* its squares in norm_part */
    int32_t part_end;
    float lr_factor;     /* on the step's learning rate */
    float max_grad_norm; /* clip of its own norm; 0: it is clipped with the network, by the norm of both */
} optim_group;

/* What adam found out about the gradient of this step. */
typedef struct {
    float grad_norm;  /* global norm before the clip; non-finite when the gradient is */
    float clip;       /* factor applied to the gradient, <= 1 */
    uint32_t skipped; /* updates ever skipped because the norm was not finite; they do not count in bias correction */
    uint32_t pad0_;
} optim_stats;

/* A weight matrix whose largest singular value is bounded. Each block of a launch over all matrices belongs to one. */
typedef struct {
    int64_t offset;       /* first element of theta */
    int32_t K;            /* rows */
    int32_t Kp;           /* rows with padding */
    int32_t Np;           /* columns with padding */
    int32_t u_at;         /* first element in the vectors over rows */
    int32_t v_at;         /* and over columns */
    int32_t row_block;    /* its first block of spectral_rows, */
    int32_t column_block; /* spectral_columns */
    int32_t weight_block; /* and spectral_project */
} spectral_matrix;

/* One step, as the host sees it: an entry of a mapped ring. Writer: sequence = 0, fence, payload, fence, sequence =
 * step + 1. Reader: sequence, payload, sequence again. Means are over the batch and the branches, unit weights unless
 * said. */
typedef struct {
    uint64_t sequence;
    uint64_t step;
    uint64_t started_ns; /* %globaltimer of the first kernel (volatile) */
    uint64_t ended_ns;   /* %globaltimer of the last kernel (volatile) */
    uint64_t guard_key;  /* guard_block.key: all ones: no fault */
    float loss;          /* importance-weighted blend: what is minimized */
    float ce;            /* cross-entropy */
    float mse;           /* (Q - y)^2 */
    float td_error;      /* |Q - y| */
    float q_mean;        /* Q of the actions taken */
    float q_min;
    float q_max;
    float target_mean; /* y */
    float weight_mean; /* importance weight */
    float atom_use;    /* exp(entropy of the mean projected target) / atoms */
    float edge_mass;   /* projected target mass on the first and the last atom */
    float spike_share; /* spikes among non-terminal targets */
    float grad_norm;
    float clip;
    float ce_scale; /* gradient budget */
    float mse_scale;
    float lr;
    float tau;
    float beta_per;
    float alpha_c51;
    uint32_t alarm_edge_mass; /* alarm_block */
    uint32_t alarm_spike_share;
    uint32_t alarm_q_clip;
    uint32_t alarm_atom_use;
    uint32_t replay_size;
    uint32_t replay_skipped;
} step_record;

/* A stretch of the flat gradient, and where its partial gradients lie: docs/step/adam_grad.md. */
typedef struct {
    int64_t begin;    //@ first element in the flat gradient, multiple of 16
    int64_t end;      //@ one beyond the last
    int64_t part;     //@ where its first partial gradient begins, in floats
    int64_t stride;   //@ floats from one partial gradient to the next
    int32_t splits;   //@ partial gradients; 0: the gradient is there already
    uint32_t pad0_;   //@ pad
} grad_run;
