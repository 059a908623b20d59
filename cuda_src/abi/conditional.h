/* The kernels that set conditional handles, and what they go by: cuda_src/guard/set_conditions.cu. */

/* A flag is a 32-bit or 64-bit word in device memory; it is raised when a bit of the mask differs from the clear value. */
#define CONDITIONS 8
typedef struct {
    const uint32_t *word; //@ in u32[words]   the word, low half first
    uint64_t clear;       //@ its value when nothing is raised
    uint64_t handle[8];   //@ of the IF nodes
    uint64_t mask[8];     //@ bits of the word that each goes by
    int32_t words;        //@ halves of the word: 1 or 2
    int32_t count;        //@ handles in use, 1 to CONDITIONS
} set_conditions_args;

typedef struct {
    loop_block *loop;     //@ inout loop_block[1]
    const uint32_t *stop; //@ in u32[words] optional   the loop ends once this is raised; null: never early
    uint64_t clear;       //@ of the stop word
    uint64_t mask;        //@ of the stop word
    uint64_t handle;      //@ of the WHILE node
    int32_t words;        //@ halves of the stop word: 1 or 2
    uint32_t pad0_;       //@ pad
} begin_loop_args;

typedef struct {
    loop_block *loop;     //@ inout loop_block[1]
    const uint32_t *stop; //@ in u32[words] optional
    uint64_t clear;       //@ of the stop word
    uint64_t mask;        //@ of the stop word
    uint64_t handle;      //@ of the WHILE node
    int32_t words;        //@ halves of the stop word: 1 or 2
    uint32_t pad0_;       //@ pad
} next_step_args;

typedef struct {
    loop_block *loop; //@ inout loop_block[1]
    uint32_t steps;   //@ of each launch from now on
    uint32_t pad0_;   //@ pad
} set_loop_steps_args;
