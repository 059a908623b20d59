# ruff: noqa: E501
"""The old behaviour of each row of the known failures, as a change to this tree, and the tests that must notice it.

`planting.py` makes each change in a copy of the tree and runs the tests there; `docs/known-failures.md` says what was seen.
A change is a piece of text that stands exactly once in its file, and what replaces it. test_plants.py checks that it still
does: where the code moved on, write the old behaviour into the new code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plant:
    """An old behaviour.

    Attributes
    ----------
    row : str
        Of the known failures, such as ``"K5"``.
    old : str
        What the change does.
    edits : tuple of (file, text, replacement)
    tests : tuple of str
        Node ids; each must fail.
    build : bool
        Whether the native half has to be built again. A change that only a search of the sources finds need not compile.
    """

    row: str
    old: str
    edits: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...]
    build: bool = False

    @property
    def name(self) -> str:
        return f"{self.row}: {self.old}"


LEARNER = "tests/dqn/test_learner.py::"
ISOLATION = "tests/graph/test_isolation.py::"
KNOWN = "tests/known_failures/"
COUNTERFACTUAL = "tests/market/test_counterfactual.py::"
NO_BREACH = ("foxhunt_rt/graph/isolation.py", "        if self.mode is Isolation.STRICT:\n", "        if False:\n")

PLANTS: tuple[Plant, ...] = (
    Plant("K2", "isolation is recorded, not enforced",
          (("foxhunt_rt/graph/runtime.py", "isolation: Isolation | str = Isolation.STRICT", "isolation: Isolation | str = Isolation.AUDIT"),),
          (ISOLATION + "test_a_breach_names_both_users",)),
    Plant("K3", "one module instance for every child",
          (NO_BREACH, ("foxhunt_rt/graph/modules.py", "key = (user, image.stem)", 'key = ("everyone", image.stem)')),
          (ISOLATION + "test_one_kernel_in_two_children_is_two_functions",)),
    Plant("K3", "what was captured is not compared with what was handed out",
          (("foxhunt_rt/graph/plan.py", "        if node.function not in own:\n", "        if node.function not in own:\n            continue\n        if False:\n"),),
          (ISOLATION + "test_a_function_that_the_pool_did_not_hand_out_is_found_in_the_capture",)),
    Plant("K4", "ungraphed launches from the module that the child captured",
          (NO_BREACH, ("foxhunt_rt/graph/modules.py", "key = (user, image.stem)",
                       'key = (user.removesuffix("/ungraphed"), image.stem)')),
          (ISOLATION + "test_no_ungraphed_user_in_a_captured_module",)),
    Plant("K4", "work at an epoch's end by functions of the step",
          (NO_BREACH, ("foxhunt_rt/graph/modules.py", "key = (user, image.stem)",
                       'key = ("step/forward" if user == "ungraphed:epoch" else user, image.stem)')),
          ("tests/dqn/children/test_epoch.py::test_known_failure_k4",)),
    Plant("K5", "None for a required pointer becomes null",
          (("foxhunt_rt/kernels/launch_args.py",
            'raise ArgumentError(kernel, name, "None, but the kernel uses it: give a buffer (None is for optional fields)")',
            "return None"),),
          ("tests/kernels/test_launch_args.py::test_a_null_pointer_is_refused_before_the_launch",
           "tests/graph/test_step.py::test_null_pointer_is_refused_before_the_launch",
           "tests/dqn/children/test_counters.py::test_a_null_pointer_is_refused_before_the_launch")),
    Plant("K5", "a kernel uses an optional pointer without a guard",
          (("cuda_src/network/select_actions.cu", "    if (a.q)\n", ""),),
          (KNOWN + "test_null_pointers.py::test_optional_pointers_may_be_null",), build=True),
    Plant("K5", "a pointer that some launches need is optional in all",
          (("cuda_src/abi/network.h", "//@ in f32[passes/3*R*Kp] if_any ", "//@ in f32[R*Kp] optional "),),
          (KNOWN + "test_null_pointers.py::test_a_pointer_that_some_launches_need_is_refused_where_it_is_needed",), build=True),
    Plant("K5", "the context does not keep its first error",
          (("foxhunt_rt/driver/context.py", "if error.sticky and self._dead is None:", "if False:"),),
          ("tests/driver/test_process.py::test_a_dead_context_reports_its_first_cause_and_the_process_lives",)),
    Plant("K6", "an argument left out is null",
          (("foxhunt_rt/kernels/launch_args.py", "if field.name in args or field.is_pad:",
            "if field.name in args or field.is_pad or field.optional:"),
           ("foxhunt_rt/kernels/launch_args.py", "_pointer(kernel, field, args[field.name], scalars, abi)",
            "_pointer(kernel, field, args.get(field.name), scalars, abi)")),
          ("tests/kernels/test_launch_args.py::test_an_optional_pointer_left_out_is_said_so",)),
    Plant("K6", "a statistic is not written",
          (("cuda_src/guard/publish.cu", "r.q_mean = total[STAT_Q] * mean;", "r.q_mean = 0.0f;"),),
          (LEARNER + "test_every_statistic_moves",), build=True),
    Plant("K7", "a mapped buffer is read without waiting",
          (("foxhunt_rt/driver/memory.py", "        after.synchronize()\n", ""),),
          ("tests/graph/test_mapped_reads.py::test_a_read_after_an_event_sees_the_new_value",)),
    Plant("K7", "a record is taken whatever its sequence number",
          (("foxhunt_rt/dqn/records.py", "        if found == expected:\n            record", "        if True:\n            record"),
           ("foxhunt_rt/dqn/records.py", "            if found == expected:\n                return", "            if True:\n                return")),
          (LEARNER + "test_reader_takes_every_record_once_and_raises_on_an_overrun",
           LEARNER + "test_every_statistic_moves")),
    Plant("K8", "the sum that is drawn from is that of the first launch",
          (("cuda_src/replay/per_sample.cu", "const double total = node.total;", "static const double total = node.total;"),),
          ("tests/replay/test_ring.py::test_a_replayed_graph_draws_rows_inserted_after_its_capture",
           LEARNER + "test_a_grown_replay_is_seen_by_the_captured_step"), build=True),
    Plant("K8", "setting a baked value does nothing, and says nothing",
          (("foxhunt_rt/graph/updates.py", "        if not isinstance(given, Slot):", "        if False:"),),
          ("tests/graph/test_updates.py::test_what_was_baked_says_where_it_came_from",
           LEARNER + "test_a_grown_replay_is_seen_by_the_captured_step")),
    Plant("K8", "gamma is that of the first launch",
          (("cuda_src/replay/per_sample.cu", "const float gamma = a.step->gamma, scale = a.step->reward_scale;",
            "static const float gamma = a.step->gamma; const float scale = a.step->reward_scale;"),),
          ("tests/dqn/children/test_per_sample.py::test_the_step_decides_what_is_drawn",), build=True),
    Plant("K9", "a floating-point atomic where only nvcc looks",
          (("cuda_src/optim/grad_reduce.cu", "    FX_FOR(i, 1) a.norm_part[blockIdx.x] = s;\n",
            "#ifdef FX_GPU\n    atomicAdd(a.norm_part, s);\n#else\n    a.norm_part[blockIdx.x] = s;\n#endif\n"),),
          (KNOWN + "test_kernel_sources.py::test_no_atomic_escapes_the_compiler_that_takes_integers_alone",)),
    Plant("K9", "floats added in the order in which blocks come",
          (("foxhunt_rt/dqn/children/adam_grad.py", "    if buffers.partial is not None:\n        reduce(child,",
            "    if buffers.partial is not None:\n        child.memset(buffers.norm_part)\n        reduce(child,"),
           ("cuda_src/optim/grad_reduce.cu", "    FX_FOR(i, 1) a.norm_part[blockIdx.x] = s;\n", """
    unsigned long long *sum = (unsigned long long *)a.norm_part, seen = *sum, next;
    for (;;) {
        double x;
        __builtin_memcpy(&x, &seen, 8);
        x += s;
        __builtin_memcpy(&next, &x, 8);
        unsigned long long was = atomicCAS(sum, seen, next);
        if (was == seen) break;
        seen = was;
    }
""")),
          (KNOWN + "test_same_bits_in_any_order.py::test_three_steps_give_the_same_bits_in_any_order",), build=True),
    Plant("K10", "the guard is looked at every fifth step",
          (("foxhunt_rt/dqn/records.py", "if not record.startswith(_CLEAR, self._key_at):",
            "if not record.startswith(_CLEAR, self._key_at) and (self.next_step - 1) % 5 == 0:"),),
          (LEARNER + "test_a_planted_nan_is_caught_in_one_step_and_says_where",)),
    Plant("K10", "every fifth step leaves a record",
          (("cuda_src/guard/publish.cu", "        *sequence = step.step + 1;", "        if (step.step % 5 == 0) *sequence = step.step + 1;"),),
          ("tests/train/test_walkforward.py::test_every_step_leaves_its_record_also_in_epochs_of_three_steps",), build=True),
    Plant("K10", "the record holds a clear guard whatever happened",
          (("cuda_src/guard/publish.cu", "r.guard_key = fx::check_reported(a.guard, guard_key, step, r);", "r.guard_key = ~0ull;"),),
          (LEARNER + "test_a_planted_nan_is_caught_in_one_step_and_says_where",), build=True),
    Plant("K11", "a maximum seeded with -1e30 that leaves NaN out",
          (("cuda_src/lib/reduce.h", "return (a != a) ? a : ((b != b) ? b : (a > b ? a : b));", "return b > a ? b : a;"),
           ("cuda_src/lib/reduce.h", "return block_reduce(n, -INFINITY, op_max(), f);", "return block_reduce(n, -1e30f, op_max(), f);")),
          (KNOWN + "test_reductions_keep_nan.py::test_one_nan_anywhere_is_the_result",
           KNOWN + "test_reductions_keep_nan.py::test_a_row_of_nan_gave_the_seed_of_the_old_maximum",
           "tests/dqn/children/test_ddqn.py::test_statistics_keep_nan"), build=True),
    Plant("K11", "checks that NaN passes",
          (("cuda_src/lib/guard.h", "if (!(fabsf(x) <= limit)) guard_raise", "if (fabsf(x) > limit) guard_raise"),
           ("cuda_src/lib/guard.h", "if (!(fabsf(mass - 1.0f) <= 1e-6f))", "if (fabsf(mass - 1.0f) > 1e-6f)"),
           ("cuda_src/lib/guard.h", "if (!(log_p <= 1e-6f))", "if (log_p > 1e-6f)")),
          ("tests/dqn/children/test_ddqn.py::test_checks_at_their_limits",), build=True),
    Plant("K11", "log-probabilities in bf16",
          (("cuda_src/loss/c51_row_host.h", "v[j] = v[j] + x[j] - log_sum;",
            "v[j] = __uint_as_float((__float_as_uint(v[j] + x[j] - log_sum) + 0x8000u) & 0xffff0000u);"),),
          ("tests/dqn/test_whole_step.py::test_gradient", LEARNER + "test_every_alpha_is_free_of_faults"), build=True),
    Plant("K11", "what is reported of Q is not checked",
          (("cuda_src/guard/publish.cu", "    if (within) return key;\n", "    if (within || true) return key;\n"),),
          ("tests/dqn/children/test_publish.py::test_a_reported_q_beyond_the_support_is_a_fault_in_this_very_record",
           "tests/dqn/children/test_publish.py::test_statistics_of_no_rows_are_a_fault"), build=True),
    Plant("K11", "the gradient budget does not know the blend",
          (("cuda_src/loss/budget_blend.cu", "s = fx::gradient_budget(a.step->grad_budget, ce2, mse2);",
            "const float c = a.step->alpha_c51, m = 1.0f - c;\n"
            "        s = fx::gradient_budget(a.step->grad_budget, ce2 / (c * c), mse2 / (m * m));"),),
          ("tests/dqn/children/test_ddqn.py::test_budget_bounds_each_part_after_the_blend",), build=True),
    Plant("K11", "mass beyond the support is dropped instead of clamped",
          (("cuda_src/loss/projection.h", "        float b = c + g * (float)i, top = (float)(N - 1);\n"
                                          "        b = b < 0.0f ? 0.0f : (b > top ? top : b);  // NaN stays NaN and reaches the guard\n",
            "        float b = c + g * (float)i;\n"),),
          ("tests/dqn/children/test_ddqn.py::test_targets_on_every_atom_between_and_beyond_both_ends",
           "tests/dqn/children/test_ddqn.py::test_no_planted_cause_no_finding"), build=True),
    Plant("K11", "mass on the edge atoms raises no alarm",
          (("cuda_src/guard/publish.cu", "alarms.edge_mass += edge_mass > step.alarm_edge_mass;", ""),),
          (LEARNER + "test_every_statistic_moves",), build=True),
    Plant("K11", "statistics divided by no rows",
          (("cuda_src/guard/publish.cu", "total[STAT_NON_TERMINAL] > 0.0f ? total[STAT_SPIKES] / total[STAT_NON_TERMINAL] : 0.0f;",
            "total[STAT_SPIKES] / total[STAT_NON_TERMINAL];"),),
          (LEARNER + "test_a_batch_of_terminal_rows_alone_has_finite_statistics",), build=True),
    Plant("K11", "a fold keeps the step counters of the one before",
          (("foxhunt_rt/dqn/learner.py", "for buffer in (self.state, self.step_block, self.alarms):",
            "for buffer in (self.step_block, self.alarms):"),),
          (LEARNER + "test_same_seed_same_bits_and_a_reset_is_a_new_learner",)),
    Plant("K11", "a fold keeps the settings of the one before",
          (("foxhunt_rt/dqn/learner.py", "        self.control.reset(seed)\n", ""),),
          (LEARNER + "test_same_seed_same_bits_and_a_reset_is_a_new_learner",)),
    Plant("K11", "a fold keeps the largest priority of the one before",
          (("cuda_src/replay/insert.cu", "            ring.max_priority = 1.0f;\n", "            ring.max_priority = a.ring->max_priority > 0.0f ? a.ring->max_priority : 1.0f;\n"),),
          (LEARNER + "test_same_seed_same_bits_and_a_reset_is_a_new_learner",), build=True),
    Plant("K12", "printf in a kernel",
          (("cuda_src/loss/budget_blend.cu", "    const int row = (int)blockIdx.x, K = a.K, N = a.N;\n",
            '    const int row = (int)blockIdx.x, K = a.K, N = a.N;\n    if (row == 0) printf("K %d\\n", K);\n'),),
          (KNOWN + "test_kernel_sources.py::test_no_kernel_prints",)),
    Plant("K13", "the normalizer is there and never called",
          (("foxhunt_rt/dqn/features.py", '    ("popart", popart.PopArt),\n', ""),),
          ("tests/dqn/children/test_popart.py::test_known_failure_k13_small_rewards_use_the_support",)),
    Plant("K13", "the use of few atoms raises no alarm",
          (("cuda_src/guard/publish.cu", "            alarms.atom_use += atom_use < step.alarm_atom_use;\n", ""),),
          (LEARNER + "test_every_statistic_moves",), build=True),
    Plant("K13", "the support is the bound [r]/(1 - gamma)",
          (("foxhunt_rt/train/support.py",
            "np.float32(config.train.support_margin * np.quantile(np.abs(g) * scale, config.train.support_quantile))",
            "np.float32(np.abs(reward).max() * scale / (1 - config.loss.gamma))"),),
          ("tests/train/test_support.py::test_normalized_returns_have_deviation_one_and_the_support_holds_them",)),
    Plant("K14", "the reward of a short position is negated",
          (("cuda_src/market/environment.cu", "a.row_reward[row] = (float)o.reward;",
            "a.row_reward[row] = (float)(o.acc.position < 0 ? -o.reward : o.reward);"),),
          ("tests/market/test_environment.py::test_a_mirrored_action_in_the_mirrored_market_earns_the_same",
           "tests/market/test_environment.py::test_rewards_add_up_to_the_equity_that_the_fills_imply"), build=True),
    Plant("K14", "the other direction's reward is that of the step taken, negated",
          (("cuda_src/market/environment.cu", "const fx::outcome o = fx::play(m, s, b, last, choice, terminated, conviction, fx::has_goal(a.P));",
            "fx::outcome o = fx::play(m, s, b, last, choice, terminated, conviction, fx::has_goal(a.P));\n        if (cycle == CYCLE_DIRECTION && !taken) o.reward = -reward[0];"),),
          (COUNTERFACTUAL + "test_every_cycle_mirror_position_and_action",), build=True),
    Plant("K14", "the reward of a mirrored row is negated",
          (("cuda_src/market/environment.cu", "a.row_reward[row] = (float)o.reward;",
            "a.row_reward[row] = (float)(mirrored ? -o.reward : o.reward);"),),
          (COUNTERFACTUAL + "test_a_mirrored_row_is_a_row_of_the_mirrored_market",
           COUNTERFACTUAL + "test_every_cycle_mirror_position_and_action"), build=True),
    Plant("K14", "the reward of a mirrored row is negated twice: when it is stored, and when it is drawn",
          (("cuda_src/market/environment.cu", "a.row_reward[row] = (float)o.reward;",
            "a.row_reward[row] = (float)(mirrored ? -o.reward : o.reward);"),
           ("cuda_src/replay/per_sample.cu", "a.batch_return[k] = ret;", "a.batch_return[k] = sign ? -ret : ret;")),
          (COUNTERFACTUAL + "test_windows_never_join_a_step_that_was_not_taken",
           COUNTERFACTUAL + "test_every_cycle_mirror_position_and_action"), build=True),
    Plant("K15", "the reward is scaled by 0.1",
          (("cuda_src/market/environment.cu", "a.row_reward[row] = (float)o.reward;", "a.row_reward[row] = 0.1f * (float)o.reward;"),),
          ("tests/market/test_environment.py::test_rewards_add_up_to_the_equity_that_the_fills_imply",), build=True),
    Plant("K15", "an untrained sigmoid scales size and reward",
          (("cuda_src/heads/plan.cu", "if (!(a.state->readiness >= a.gate)) {", "if (false) {"),),
          ("tests/dqn/children/test_plan.py::test_conviction_is_exactly_one_until_it_is_earned",
           "tests/train/test_conviction.py::test_no_row_is_gated_at_initialization"), build=True),
    Plant("K15", "readiness is given, not earned",
          (("cuda_src/heads/plan.cu", "s.readiness = s.streak >= a.ready_steps ? s.skill : 0.0f;", "s.readiness = 1.0f;"),),
          ("tests/dqn/children/test_plan.py::test_readiness_is_earned_step_by_step_and_lost_at_once",), build=True),
    Plant("K15", "the head is judged on what it was trained on",
          (("cuda_src/heads/plan.cu", "held = first && last, trained = !first && !last;", "held = first && last, trained = true;"),),
          ("tests/dqn/children/test_plan.py::test_no_bar_that_judges_is_ever_trained_on",), build=True),
    Plant("K15", "nobody is told of a policy that is still random",
          (("foxhunt_rt/train/evaluate.py", "if len(spread) == len(BRANCHES) else []", "if False else []"),),
          ("tests/train/test_evaluate.py::test_a_policy_that_trades_at_random_raises_the_alarms",)),
    Plant("K16", "every product has a workspace of its own",
          (("foxhunt_rt/gemm/workspace.py", "        if lane not in self._blocks:\n", "        if True:\n"),),
          ("tests/gemm/test_products.py::test_a_lane_has_one_workspace",)),
    Plant("K17", "ungraphed work every fifth step",
          (("foxhunt_rt/dqn/learner.py", "        self.timer.launch(self.graph, waited, count)\n",
            "        self.timer.launch(self.graph, waited, count)\n        if self.launched % 5 == 0:\n            self.control.apply()\n"),),
          ("tests/dqn/children/test_vaccine.py::test_known_failure_k17",
           LEARNER + "test_a_step_is_one_launch_without_synchronization_or_allocation")),
    Plant("K18", "memsets a byte at a time",
          (("foxhunt_rt/driver/memory.py", "for width in (4, 2, 1):", "for width in (1, 2, 4):"),),
          ("tests/driver/test_buffers.py::test_fill_uses_the_widest_memset",
           LEARNER + "test_the_step_clears_nothing_bytewise")),
    Plant("K18", "the gradient is cleared every step",
          (("foxhunt_rt/dqn/children/adam_grad.py", "        record(child, layout, inputs, buffers, products)\n",
            "        child.memset(buffers.grad[: layout.network_size])\n        record(child, layout, inputs, buffers, products)\n"),),
          (LEARNER + "test_the_step_clears_nothing_bytewise",)),
    Plant("K19", "a kernel that a rewrite left behind",
          (("cuda_src/optim/grad_reduce.cu", "FX_KERNEL_ANYBLOCK(grad_reduce) {", "FX_KERNEL(old_saxpy) {}\n\nFX_KERNEL_ANYBLOCK(grad_reduce) {"),),
          (KNOWN + "test_no_dead_kernel.py::test_every_kernel_is_launched_by_the_package_a_tool_or_a_test",
           KNOWN + "test_no_dead_kernel.py::test_every_argument_struct_has_its_kernel")),
    Plant("K20", "a program's option has a default of its own",
          (("foxhunt_rt/cli/options.py", '    parser.add_argument("--seed",',
            '    parser.add_argument("--atoms", type=int, default=64)\n    parser.add_argument("--seed",'),),
          (KNOWN + "test_one_place_for_defaults.py::test_no_program_holds_a_default_of_a_setting",)),
    Plant("K20", "a function has a default of its own",
          (("foxhunt_rt/dqn/layout.py", "\nclass ", "\ndef make(hidden: int, atoms: int = 64) -> None: ...\n\n\nclass "),),
          (KNOWN + "test_one_place_for_defaults.py::test_no_program_holds_a_default_of_a_setting",)),
)  # fmt: skip
