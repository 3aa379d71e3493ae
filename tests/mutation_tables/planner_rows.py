"""Mutations of the planner and of what it shares with the trainer: kernels, and the split of a batch."""

from tests.mutation_tables.mutation import API, CORE, Mutation

PLANNER_MUTATIONS = (
    Mutation(
        "a recomputed layer with a frozen output projection skips what the heads read",
        f"{API}/network/layer_costs.py",
        "if self._products.get(activation.name) in saved])\n",
        "if activation.name in self._products])\n",
        ("tests/core/planner/test_frozen.py",),
    ),
    Mutation(
        "splash attention gets blocks that are no whole rows of registers",
        f"{API}/network/attention_kernel.py",
        "SPLASH_BLOCKS = BlockLimits(smallest=LANES, largest=512, multiple=LANES)\n",
        "SPLASH_BLOCKS = BlockLimits(smallest=LANES, largest=512)\n",
        ("tests/api/test_attention_blocks.py",),
    ),
    Mutation(
        "a pipeline does without fewer microbatches, although they would fit",
        f"{CORE}/planner/batch_split.py",
        "    return [k * stages for k in ranked]\n",
        "    return [k * stages for k in ranked[:1]]\n",
        ("tests/core/planner/test_batch_split.py",),
    ),
    Mutation(
        "dropless experts on GPUs count as cheap as those on TPUs",
        f"{CORE}/validation/validate_experts.py",
        "    return spec.slices.accelerator.startswith(TPU)\n",
        "    return spec.slices.accelerator != CPU\n",
        ("tests/core/planner/test_experts.py",),
    ),
    Mutation(
        "hosts of a healthy small slice warn of a slow network",
        f"{CORE}/planner/run_config.py",
        "        link=_sum_rate(plan.shape),\n",
        "        link=plan.shape.rates.link * plan.shape.rates.num_links,\n",
        ("tests/core/planner/test_expected.py",),
    ),
    Mutation(
        "each of two devices of a chip has all links of the chip",
        f"{CORE}/planner/interconnect.py",
        "1 if span.dim == CORE else shape.devices_per_chip",
        "1",
        ("tests/core/planner/test_roofline.py",),
    ),
    Mutation(
        "a smaller batch has the padding of the largest",
        f"{CORE}/planner/batch_split.py",
        "replace(self, padding=self.padding + sequences)",
        "replace(self, padding=self.padding)",
        ("tests/core/planner/test_batch_split.py",),
    ),
    Mutation(
        "a job with an unknown optimizer has the memory of AdamW",
        f"{CORE}/validation/validate_sizes.py",
        '    "optimizer.type",\n',
        "",
        ("tests/core/validation/test_validate.py::test_one_mistake_is_one_problem",),
    ),
    Mutation(
        "a world does not say what its program has in host memory",
        f"{CORE}/planner/run_config.py",
        ', "offload": memory.offload or ()}',
        "}",
        ("tests/core/planner/test_expected.py", "tests/core/planner/test_auto_offload.py"),
    ),
    Mutation(
        "an old pod ignores what its world has in host memory",
        f"{API}/world.py",
        "        if world.offload is not None:\n",
        "        if False:\n",
        ("tests/api/test_live.py",),
    ),
    Mutation(
        "replicas may have an average that differs on each slice",
        f"{CORE}/validation/validate_replicas.py",
        "            spec.optimizer.average is not None,\n",
        "            False,\n",
        ("tests/corpus/test_corpus.py::test_each_job_has_all_its_problems",),
    ),
    Mutation(
        "the padding of replicas goes unnoticed",
        f"{CORE}/validation/validate_sizes.py",
        "_padding_share(batch, _batch_parts(worst) * worlds)",
        "_padding_share(batch, _batch_parts(worst))",
        ("tests/corpus/test_corpus.py::test_each_job_has_all_its_problems",),
    ),
    Mutation(
        "cuDNN gets wide heads on each GPU that is not built in",
        f"{API}/network/attention_kernel.py",
        "    is_old = not case.accelerator.startswith(FROM_HOPPER)\n",
        '    is_old = case.accelerator.startswith("nvidia-a100")\n',
        ("tests/api/test_attention_kernel.py",),
    ),
    Mutation(
        "dropless experts are advised on a CPU, which computes each row for all of them",
        f"{CORE}/validation/validate_experts.py",
        "    if spec.slices.accelerator == CPU or experts.capacity_factor < experts.full_capacity:\n",
        "    if experts.capacity_factor < experts.full_capacity:\n",
        ("tests/core/planner/test_experts.py",),
    ),
)
