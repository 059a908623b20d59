/* What the node-by-node mode looks at memory with: cuda_src/guard/find_change.cu. */

typedef struct {
    const uint64_t *ranges; //@ in u64[3*count]   address now, address of its copy (0: every byte is `pattern`), bytes
    uint64_t *first;        //@ inout u64[1]   lowest address that differs; all ones: none
    int32_t count;          //@ ranges, = gridDim.y
    uint32_t pattern;       //@ a byte, four times
} find_change_args;
