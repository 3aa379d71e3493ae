"""How many operations a train step takes, from the spec alone: those of matrix products, as all such counts have it.

A product of a token with a matrix of P parameters is 2 P operations going forward and 4 P going back. `remat: full`
goes forward twice, but leaves out what nothing waits for: the last product of a layer. Attention computes all of a
sequence's scores, also those that the causal mask then hides.

Shapes: L length, D model width, H query heads, G key and value heads, K head width, F MLP width, E experts, C places.
"""

from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.sharding import Ways, count_ways, split_ways
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine
from trainingjob_operator.core.planner.parameters import count_active_parameters, list_leaves
from trainingjob_operator.core.planner.workload import Workload

FORWARD, BACKWARD = 2, 4
"""Operations of a parameter and token, each way."""


def count_step_flops(workload: Workload, layout: Layout) -> int:
    """Return the operations of one device in one step of a layout, those on padding and in idle stages among them."""
    degrees = combine(layout.ici, layout.dcn)
    others = tuple((axis, degree) for axis, degree in degrees.items() if axis != "data")  # it splits only the batch
    layers, head = _count_token_flops(workload, others)
    tokens = layout.rows_per_shard * (workload.length // degrees["context"]) * layout.accumulation
    turns = layout.microbatches + degrees["stage"] - 1
    return tokens * (turns * layers + layout.microbatches * head // degrees["stage"])


def count_useful_flops(workload: Workload) -> int:
    """Return the operations a token for which a model is trained: model FLOPs, by which utilisation is measured.

    Six for each parameter that works on the token, the embedding table left out, and attention over the half of the
    scores that is not masked; nothing is counted twice that is only computed again (Chowdhery et al., arXiv
    2204.02311, appendix B; the causal half as in NVIDIA's Megatron-LM).
    """
    model = workload.model
    table = 0 if model.tie_embeddings else model.vocab_size * model.embed_dim  # a tied table is the head too
    scores = model.num_layers * workload.length * model.num_heads * model.head_dim
    return 6 * (count_active_parameters(model) - table) + 6 * scores


@lru_cache(maxsize=256)  # the sizes of an elastic job are mostly alike
def _count_token_flops(workload: Workload, axes: tuple[tuple[Axis, int], ...]) -> tuple[int, int]:
    """Return the operations of a device for one token in the layers of a stage, and in the head."""
    degrees, model = dict(axes), workload.model
    ways = count_ways(degrees)
    again = workload.remat == "full"
    passes = FORWARD + BACKWARD + (FORWARD if again else 0)
    weights = spared = 0
    for leaf in list_leaves(model):
        if "layers" not in leaf.axes or leaf.name.endswith(".scale"):
            continue
        size = leaf.gathered_size(ways) // model.num_layers
        if model.experts and "experts" in leaf.axes:  # a token works in its places, those of the whole mesh axis
            places = model.experts.capacity(workload.length) * degrees["expert"]
            size = size * places // model.experts.tokens_of_group(workload.length)
        weights += size
        if leaf.name.endswith(".down") and not model.experts:
            spared += size
    heads = _split(model.num_heads, "heads", ways)
    scores = 2 * heads * model.head_dim * workload.length
    layer = passes * (weights + scores) - FORWARD * spared * again + _count_routing(workload, again=again)
    head = (FORWARD + BACKWARD) * model.embed_dim * _split(model.vocab_size, "vocab", ways)
    return model.num_layers // degrees["stage"] * layer, head


def _count_routing(workload: Workload, *, again: bool) -> int:
    """Return the operations that bring one token to its experts and back, by products with ones and zeros."""
    experts = workload.model.experts
    if experts is None:
        return 0
    places = experts.count * experts.capacity(workload.length)
    # There and back, going forward and back; on the second way forward nobody waits for the way back.
    return 2 * places * workload.model.embed_dim * (4 + again)


def _split(size: int, logical_axis: str, ways: Ways) -> int:
    """Return the part of a dim that one device holds."""
    return size // split_ways(logical_axis, size, ways)
