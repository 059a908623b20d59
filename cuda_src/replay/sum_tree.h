// The tree of sums over priorities, one node of fan-out 256 at a time (abi/replay.h).
//
// A node is itself a binary tree over 256 values, additions in f64 and in the order of that tree, so that a sum and the
// descent below it agree to the last bit, on a GPU and on a host, for any block size. The descent keeps two promises
// whatever the rounding: it never ends at a value of zero while the total is positive, and it never falls as u grows.
// Both follow from its one rule: go right when u >= left and right > 0, else left.
#pragma once
#include "lib/kernel.h"

namespace fx {

struct sum_node {
    double total;

#ifdef FX_GPU
    // One warp a node: a lane holds 8 values, and for each of the 5 levels above its own subtree's sum and its sibling's.
    // Every warp of the block does the same.
    double v[8], own[5], sibling[5];

    FX_DEVICE void load_values(const float *x) {
        const float4 *p = reinterpret_cast<const float4 *>(x) + (threadIdx.x & 31) * 2;
        float4 lo = p[0], hi = p[1];
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
        v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    }
    FX_DEVICE void load_values(const double *x) {
        const double2 *p = reinterpret_cast<const double2 *>(x) + (threadIdx.x & 31) * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            double2 pair = p[i];
            v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
        }
    }

    template <class T>
    FX_DEVICE void load(const T *x) {
        load_values(x);
        double sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#pragma unroll
        for (int level = 0; level < 5; ++level) {
            own[level] = sum;
            sibling[level] = __shfl_xor_sync(0xffffffffu, sum, 1 << level);
            sum = own[level] + sibling[level];
        }
        total = sum;
    }

    // Where u falls; u becomes the rest below that value. Each lane follows the path as far as it can see it; the one lane
    // that the path ends in tells the others.
    template <class T>
    FX_DEVICE int find(const T *, double &u, double &value) const {
        const int lane = (int)(threadIdx.x & 31);
        double rest = u;
        bool here = true;
#pragma unroll
        for (int level = 4; level >= 0; --level) {
            bool upper = (lane >> level) & 1;
            bool right = step(rest, upper ? sibling[level] : own[level], upper ? own[level] : sibling[level]);
            here = here && right == upper;
        }
        bool r4 = step(rest, (v[0] + v[1]) + (v[2] + v[3]), (v[4] + v[5]) + (v[6] + v[7]));
        double w0 = r4 ? v[4] : v[0], w1 = r4 ? v[5] : v[1], w2 = r4 ? v[6] : v[2], w3 = r4 ? v[7] : v[3];
        bool r2 = step(rest, w0 + w1, w2 + w3);
        double x0 = r2 ? w2 : w0, x1 = r2 ? w3 : w1;
        bool r1 = step(rest, x0, x1);
        int i = lane * 8 + (r4 ? 4 : 0) + (r2 ? 2 : 0) + (r1 ? 1 : 0);
        int winner = __ffs((int)__ballot_sync(0xffffffffu, here)) - 1;
        u = __shfl_sync(0xffffffffu, rest, winner);
        value = __shfl_sync(0xffffffffu, r1 ? x1 : x0, winner);
        return __shfl_sync(0xffffffffu, i, winner);
    }
#else
    double t[256];  // t[1] the root, t[2i] and t[2i + 1] below t[i], the values below t[128 ..]

    template <class T>
    void load(const T *x) {
        for (int i = 0; i < 128; ++i) t[128 + i] = (double)x[2 * i] + (double)x[2 * i + 1];
        for (int n = 64; n > 0; n >>= 1)
            for (int i = 0; i < n; ++i) t[n + i] = t[2 * (n + i)] + t[2 * (n + i) + 1];
        total = t[1];
    }

    template <class T>
    int find(const T *x, double &u, double &value) const {
        int i = 1;
        while (i < 128) i = 2 * i + (step(u, t[2 * i], t[2 * i + 1]) ? 1 : 0);
        i = 2 * i - 256;
        i += step(u, (double)x[i], (double)x[i + 1]) ? 1 : 0;
        value = (double)x[i];
        return i;
    }
#endif

    static FX_DEVICE bool step(double &rest, double left, double right) {
        bool go = rest >= left && right > 0.0;
        if (go) rest -= left;
        return go;
    }
};

template <class T>
FX_DEVICE double sum_of_256(const T *x) {
    sum_node node;
    node.load(x);
    return node.total;
}

// Position in the ring, 0 <= i < capacity and 0 <= distance <= capacity.
FX_DEVICE int ring_forward(int i, int distance, int capacity) {
    int at = i + distance;
    return at >= capacity ? at - capacity : at;
}
FX_DEVICE int ring_back(int i, int distance, int capacity) {
    int at = i - distance;
    return at < 0 ? at + capacity : at;
}

// A first look at a word that blocks lower or raise by integer atomics, which spares most of them the atomic: the result
// does not depend on what was seen, since the word only ever moves one way. On the host the atomic costs less than the look.
FX_DEVICE uint32_t look(const uint32_t *lowered) {
#ifdef FX_GPU
    return *(const volatile uint32_t *)lowered;
#else
    (void)lowered;
    return 0xffffffffu;
#endif
}
FX_DEVICE float look(const float *raised) {
#ifdef FX_GPU
    return *(const volatile float *)raised;
#else
    (void)raised;
    return -1.0f;
#endif
}

}  // namespace fx
