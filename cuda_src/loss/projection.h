// The projection of C51 (Bellemare 2017, algorithm 1), gathered: each atom adds up what reaches it, so no two threads write
// one place and the order of the additions is fixed.
#pragma once
#include "lib/rows.h"

namespace fx {

FX_DEVICE int clamp_index(float x, int n) { return (int)fminf(fmaxf(x, 0.0f), (float)(n - 1)); }  // NaN gives 0

// Weight of atom j, between the edges, for a mass that the Bellman operator moved to b atoms: max(0, 1 - |b - j|).
FX_DEVICE float inner_share(float b, int j) {
    return fmaxf(1.0f - fabsf(b - (float)j), 0.0f);
}

// Projects p, (N,) of sum `mass`, moved to b_i = c + g i, in units of atoms, by one warp, whose lane l owns the atoms l, l + 32,
// ..., A of them: `own` of p, m of the result. Because b grows with i, about 2/g terms reach an atom inside the support: those
// between the bounds, one more on either side. The two edge atoms receive all that was clamped, by whole-warp sums, and a NaN of c.
template <int A>
FX_DEVICE void project(const float *p, const float (&own)[A], float (&m)[A], float (&edges)[2], int N, float c, float g,
                    float mass) {
    const int lane = (int)(threadIdx.x & 31);
    edges[0] = edges[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < A; ++i) {
        const float b = c + g * (float)(lane + 32 * i);
        edges[0] += __saturatef(1.0f - b) * own[i], edges[1] += __saturatef(b - (float)(N - 2)) * own[i];
    }
    warp_sums(edges);
    if (c != c) edges[0] = edges[1] = c;
    const float inverse = 1.0f / g;
#pragma unroll
    for (int i = 0; i < A; ++i) {
        const int j = lane + 32 * i;
        float sum = 0.0f;
        if (j == 0 || j == N - 1) sum = j == 0 ? edges[0] : edges[1];
        else if (j < N && g == 0.0f) sum = inner_share(c, j) * mass;  // terminal: all of it in one place
        else if (j < N) {
            const int from = g > 0.0f ? clamp_index(((float)(j - 1) - c) * inverse, N) : 0;
            const int to = g > 0.0f ? clamp_index(((float)(j + 1) - c) * inverse + 1.0f, N) : N - 1;
#pragma unroll 1
            for (int k = from; k <= to; ++k) sum += inner_share(c + g * (float)k, j) * p[k];
        }
        m[i] = sum;
    }
}

#ifdef FX_HOST

// Projects GROUP distributions of N probabilities (row stride N) that the Bellman operator moved to b_i = c + g i, in units
// of atoms: m_j = sum_i p_i max(0, 1 - |clamp(b_i, 0, N-1) - j|) for the TILE atoms from j0. Because b grows with i, only a
// short run of i reaches a tile; taken one wider on both sides, since the terms outside are exact zeros.
template <int GROUP>
FX_DEVICE void project_tile(const float *const *p, float *const *m, int N, int j0, float c, float g) {
    float inverse = 1.0f / g;  // g = 0 (terminal): infinite or NaN bounds below, clamped to the whole row
    int from = j0 == 0 || !(g > 0.0f) ? 0 : clamp_index(((float)(j0 - 1) - c) * inverse - 1.0f, N);
    int to = j0 + TILE >= N || !(g > 0.0f) ? N - 1 : clamp_index(((float)(j0 + TILE) - c) * inverse + 2.0f, N);
    float sum[GROUP][TILE] = {};
    for (int i = from; i <= to; ++i) {
        float b = c + g * (float)i, top = (float)(N - 1);
        b = b < 0.0f ? 0.0f : (b > top ? top : b);  // NaN stays NaN and reaches the guard
        for (int t = 0; t < TILE; ++t) {
            float w = 1.0f - fabsf(b - (float)(j0 + t));
            w = w < 0.0f ? 0.0f : w;
            for (int k = 0; k < GROUP; ++k) sum[k][t] += w * p[k][i];
        }
    }
    for (int k = 0; k < GROUP; ++k)
        for (int t = 0; t < TILE; ++t)
            if (j0 + t < N) m[k][j0 + t] = sum[k][t];
}

#endif

#ifdef FX_GPU
template <int A>
FX_DEVICE void project_lanes(const float *p, float *m, int N, float c, float g, float mass) {
    float own[A], out[A], edges[2];
#pragma unroll
    for (int i = 0; i < A; ++i) {
        const int j = (int)(threadIdx.x & 31) + 32 * i;
        own[i] = j < N ? p[j] : 0.0f;
    }
    project<A>(p, own, out, edges, N, c, g, mass);
#pragma unroll
    for (int i = 0; i < A; ++i) {
        const int j = (int)(threadIdx.x & 31) + 32 * i;
        if (j < N) m[j] = out[i];
    }
}
#endif

// One distribution of at most 256 atoms by one row of FX_ROWS; what other lanes wrote of p is seen, and m is complete for all of
// them.
FX_DEVICE void project_row(const float *p, float *m, int N, float c, float g, float mass) {
#ifdef FX_GPU
    __syncwarp();
    if (N <= 64) project_lanes<2>(p, m, N, c, g, mass);
    else project_lanes<8>(p, m, N, c, g, mass);
    __syncwarp();
#else
    (void)mass;
    for (int j0 = 0; j0 < N; j0 += TILE) project_tile<1>(&p, &m, N, j0, c, g);
#endif
}

}  // namespace fx
