/* Always-on times of children (foxhunt_rt/graph/child_times.py). */

typedef struct {
    uint32_t *count;  //@ inout u32[1]   steps that this child has stamped
    uint64_t *times;  //@ out u64[capacity*width]   (capacity, width), mapped
    int32_t column;   //@ of this child, < width
    int32_t width;    //@ children
    int32_t capacity; //@ steps kept
    uint32_t pad0_;   //@ pad
} stamp_child_args;
