// Runs the guard's checks on given values, one guard block each: a mass that is not 1 cannot be produced by any input of
// the projection, so the test of the check plants it here.
//
// Launch: one block.
#include "lib/kernel.h"

#include "abi/types.h"

#include "abi/control.h"
#include "lib/guard.h"

FX_KERNEL_ANYBLOCK(guard_probe) {
    FX_FOR(i, a.n) {
        fx::guard_mass(a.guard + i, GUARD_DDQN, (uint32_t)i, a.mass[i]);
        fx::guard_log_probability(a.guard + i, GUARD_DDQN, (uint32_t)i, a.log_probability[i]);
        fx::guard_bound(a.guard + i, GUARD_DDQN, CHECK_Q_RANGE, (uint32_t)i, a.q[i], fx::q_limit(a.z_max));
        fx::guard_probabilities(a.guard + i, GUARD_DDQN, (uint32_t)i, a.probabilities[i], a.log_sum[i]);
    }
}
