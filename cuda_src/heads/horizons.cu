// Multi-horizon heads: what the account will have earned after 1, 5, 20, 60 bars, and their blend as a potential
// (docs/step/multi_horizon.md has the equations).
//
//   y_h = reward_scale / sqrt(h) * sum of the next h raw rewards,  masked;   p_h = x w_h + b_h
//   loss = mean_i sum_h valid (p_h - y_h)^2
//
// horizon_rows: 32 B a row of the ring, sum of the horizons of them (86 with the defaults, cached after the longest's 60), H
// dot products. horizon_shape: two trunk rows and one dot product each.
#include "lib/kernel.h"
#include "lib/reduce.h"

#include "abi/types.h"

#include "abi/aux.h"
#include "abi/horizons.h"
#include "replay/ahead.h"

namespace {

enum { ERROR, VALID, LABEL, SQUARE, GRADIENT };
static_assert(GRADIENT + 1 == HORIZON_COLUMNS && GRADIENT == HORIZON_MEANS, "the columns of a row");

FX_DEVICE bool finite(float x) { return fabsf(x) <= 3.402823466e38f; }

}  // namespace

FX_KERNEL_ANYBLOCK(horizon_rows) {
    const int row = (int)blockIdx.x, H = a.H;
    const float *x = a.x + (int64_t)row * a.Hp;
    const float scale = a.step->reward_scale;
    const replay_state ring = *a.ring;
    float *out = a.rows + (int64_t)row * HORIZON_COLUMNS * H;
    FX_ROWS(h, H) {
        const int bars = a.bars[h];
        const fx::ahead found = fx::look_ahead(a.ring_rows, ring, a.capacity, a.index[row], bars);
        const float p = fx::lane_sum(a.Hp, [&](int k) { return x[k] * a.w[k * HEAD_WIDTH + h]; }) + a.bias[h];
        FX_LANE_0 {
            const float y = found.sum * scale / sqrtf((float)bars), u = found.valid ? p - y : 0.0f;
            out[ERROR * H + h] = u * u;
            out[VALID * H + h] = found.valid ? 1.0f : 0.0f;
            out[LABEL * H + h] = y;
            out[SQUARE * H + h] = y * y;
            out[GRADIENT * H + h] = 2.0f * u / (float)a.B;
        }
    }
}

FX_KERNEL_ANYBLOCK(horizon_blend) {
    const int H = a.H;
    const float shaping =
        a.shaping ? fx::block_sum(a.B, [&](int r) { return fabsf(a.shaping[r]); }) / (float)a.B : 0.0f;
    FX_FOR(only, 1) {
        bool good = true;
        for (int i = 0; i < HORIZON_MEANS * H; ++i) good = good && finite(a.means[i]);
        float error[MAX_HORIZONS], top = -INFINITY, sum = 0.0f, loss = 0.0f, valid = 0.0f, mean = 0.0f;
        for (int h = 0; h < H; ++h) {
            float now[HORIZON_MEANS];
            for (int c = 0; c < HORIZON_MEANS; ++c) {
                float &kept = a.running[c * H + h];
                if (good) kept += a.rate * (a.means[c * H + h] - kept);  // what is no number moves nothing
                now[c] = kept;
            }
            // share of the variance that is left: 1 for one who knows the mean alone, and where nothing can be known
            const float n = now[VALID], center = now[LABEL] / n, variance = now[SQUARE] / n - center * center;
            const bool known = n > 0.0f && variance > 1e-5f * now[SQUARE] / n && finite(now[ERROR] / n / variance);
            error[h] = known ? now[ERROR] / n / variance : 1.0f;
            if (n > 0.0f && -error[h] > top) top = -error[h];
            loss += a.means[ERROR * H + h];
            valid += a.means[VALID * H + h];
        }
        for (int h = 0; h < H; ++h) {  // a horizon without a label yet has no part in the blend
            const float e = a.running[VALID * H + h] > 0.0f ? expf((-error[h] - top) / a.temperature) : 0.0f;
            a.blend[h] = e;
            sum += e;
        }
        for (int h = 0; h < H; ++h) {
            const float weight = sum > 0.0f ? a.blend[h] / sum : 0.0f;
            a.blend[h] = weight;
            mean += weight * error[h];
            a.metrics[h] = error[h];
            a.metrics[H + h] = weight;
        }
        const bool explains = sum > 0.0f && mean < 1.0f;
        const uint32_t before = *a.streak, streak = explains ? (before < a.ready_steps ? before + 1u : before) : 0u;
        *a.streak = streak;
        const float confidence = streak >= a.ready_steps ? 1.0f - mean : 0.0f;  // not by the luck of one batch
        a.blend[H] = confidence;
        a.metrics[2 * H] = loss;
        a.metrics[2 * H + 1] = valid / (float)H;
        a.metrics[2 * H + 2] = confidence;
        if (a.shaping) a.metrics[2 * H + 3] = shaping;
    }
}

FX_KERNEL_ANYBLOCK(horizon_shape) {
    const int row = (int)blockIdx.x, H = a.H;
    const float confidence = a.blend[H];
    const float ret = a.ret[row];
    if (!(confidence > 0.0f)) {  // not earned: the return as it is, to the bit
        FX_FOR(only, 1) {
            a.shaping[row] = 0.0f;
            a.shaped[row] = ret;
        }
        return;
    }
    const step_block &step = *a.step;
    const float unit = a.sigma ? 1.0f / (*a.sigma * step.reward_scale) : 1.0f;
    const float limit = a.bound * 0.5f * (step.v_max - step.v_min);
    float weight[MAX_HORIZONS];  // of each output
    float bias = 0.0f;
    for (int h = 0; h < H; ++h) {
        weight[h] = unit * a.blend[h] * sqrtf((float)a.bars[h]);
        bias += weight[h] * a.bias[h];
    }
    auto potential = [&](const float *x) {
        const float value = bias + fx::block_sum(a.Hp, [&](int k) {
                                float sum = 0.0f;
                                for (int h = 0; h < H; ++h) sum += weight[h] * a.w[k * HEAD_WIDTH + h];
                                return x[k] * sum;
                            });
        return confidence * (value < -limit ? -limit : value > limit ? limit : value);
    };
    const float here = potential(a.x + (int64_t)row * a.Hp), there = potential(a.x_next + (int64_t)row * a.Hp);
    FX_FOR(only, 1) {
        const float difference = a.discount[row] * there - here;
        const float shaping = finite(difference) ? difference : 0.0f;  // a head that is not finite stops nobody
        a.shaping[row] = shaping;
        a.shaped[row] = ret + shaping;
    }
}
