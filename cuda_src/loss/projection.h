// The projection of C51 (Bellemare 2017, algorithm 1), gathered: each atom adds up what reaches it, so no two threads write
// one place and the order of the additions is fixed.
#pragma once
#include "lib/rows.h"

namespace fx {

FX_DEVICE int clamp_index(float x, int n) {  // NaN gives 0
    return x > 0.0f ? (x < (float)(n - 1) ? (int)x : n - 1) : 0;
}

#ifdef FX_GPU

template <int M>
FX_DEVICE void warp_sums(float (&v)[M]) {
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1)
#pragma unroll
        for (int i = 0; i < M; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], lane);
}

// Weight of atom j for a mass that the Bellman operator moved to b atoms: max(0, 1 - |clamp(b, 0, N-1) - j|).
FX_DEVICE float atom_share(float b, int j, int N) {
    const float top = (float)(N - 1);
    b = b < 0.0f ? 0.0f : (b > top ? top : b);  // NaN stays NaN and reaches the guard
    const float w = 1.0f - fabsf(b - (float)j);
    return w < 0.0f ? 0.0f : w;
}

// Projects p, (N,) of sum `mass`, moved to b_i = c + g i, in units of atoms, by one warp. Because b grows with i, about 2/g
// terms reach an atom inside the support: those between the bounds, one more on either side. The two edge atoms receive all
// that was clamped: whole-warp sums.
FX_DEVICE void project(const float *p, float *m, int N, float c, float g, float mass) {
    float edges[2] = {};
#pragma unroll 2
    FX_LANES(i, N) {
        const float b = c + g * (float)i;
        edges[0] += atom_share(b, 0, N) * p[i], edges[1] += atom_share(b, N - 1, N) * p[i];
    }
    warp_sums(edges);
    const float inverse = 1.0f / g;
    FX_LANES(j, N) {
        float sum = 0.0f;
        if (j == 0 || j == N - 1) sum = j == 0 ? edges[0] : edges[1];
        else if (g == 0.0f) sum = atom_share(c, j, N) * mass;  // terminal: all of it in one place
        else {
            const int from = g > 0.0f ? clamp_index(((float)(j - 1) - c) * inverse, N) : 0;
            const int to = g > 0.0f ? clamp_index(((float)(j + 1) - c) * inverse + 1.0f, N) : N - 1;
#pragma unroll 1
            for (int i = from; i <= to; ++i) sum += atom_share(c + g * (float)i, j, N) * p[i];
        }
        m[j] = sum;
    }
}

#else

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

}  // namespace fx
