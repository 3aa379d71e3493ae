"""Mutations of the planner and of what it shares with the trainer: kernels, and the split of a batch."""

from tests.mutation_tables.mutation import API, Mutation

PLANNER_MUTATIONS = (
    Mutation(
        "splash attention gets blocks that are no whole rows of registers",
        f"{API}/network/attention_kernel.py",
        "SPLASH_BLOCKS = BlockLimits(smallest=LANES, largest=512, multiple=LANES)\n",
        "SPLASH_BLOCKS = BlockLimits(smallest=LANES, largest=512)\n",
        ("tests/api/test_attention_blocks.py",),
    ),
)
