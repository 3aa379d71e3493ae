"""`strategy: auto`: chooses the mesh and the remat policy with the shortest estimated step among all that fit.

One choice holds for all sizes of a job: the ICI degrees of every slice, the axis that takes the slices, and remat. The
search tries every factorization of a slice that the model dims are divisible by. If there are many, it first leaves out
`context` and `stage`, which a job needs only when the other axes are exhausted.

If nothing fits, a second search keeps the state of the optimizer in host memory, as far as the pods have that memory.

The search ranks all candidates at the largest size. It keeps the best ones that train at every size, and ranks these by
the sum of the step times at the smallest and the largest size. Among equals the candidate with fewer axes wins.

An accelerator of unknown rates gets typical rates. They only rank the meshes and are never reported.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from trainingjob_api.base import AXES, Axis
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.spec.data import Data
from trainingjob_api.spec.distillation import Distill, Features, StoredProbabilities, Teacher, TeacherSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import NO_REMAT, OPTIMIZER, Remat
from trainingjob_api.spec.objective import Objective
from trainingjob_api.spec.optimizer import Average, Optimizer
from trainingjob_api.spec.parallelism import AxisDegrees, Parallelism
from trainingjob_operator.core.planner.choice import EXPLICIT, Candidate, Choice
from trainingjob_operator.core.planner.mesh import INFERRED, divisors
from trainingjob_operator.core.planner.optimizer_offload import (
    max_offloaded_bytes,
    may_hold_state,
    offload_optimizer,
)
from trainingjob_operator.core.planner.plan import Rates, SliceShape
from trainingjob_operator.core.planner.roofline import knows_rates, predict_step
from trainingjob_operator.core.planner.size_planner import PlanCounter, SizePlanner

AUTO = "auto"
MAX_FULL_SEARCH = 128
"""Factorizations of a slice above which the search first leaves out `context` and `stage`. Without known rates it
always does."""
SLICE_AXES: tuple[Axis, ...] = ("data", "fsdp", "stage")
"""Axes that may span the slices. `tensor`, `context` and `expert` would wait for the network in every layer."""
MAX_FACTORIZATIONS = 512
"""Upper limit of factorizations per search, so that no spec makes a search long."""
FINALISTS = 16
"""Best candidates at the largest size that are measured at the smallest size too."""
RUNNERS_UP = 3
LAST_RESORT_AXES = ("stage", "context")
"""Axes that a large search uses only if nothing else fits."""
TYPICAL_RATES = Rates(bfloat16=200e12, float32=100e12, memory=1e12, link=50e9, num_links=4, network=5e9)
REMAT_POLICIES: tuple[Remat, ...] = ("none", "minimal", "saveMatmuls", "saveAttention", "full")
"""Policies of which the search takes the first that fits. Each saves less than the one before."""


def is_auto(spec: TrainingJobSpec) -> bool:
    """Return whether the planner chooses the mesh: `auto` is set, and no field that it chooses is set."""
    return spec.parallelism.strategy == AUTO and not list_explicit_fields(spec)


def list_explicit_fields(spec: TrainingJobSpec) -> tuple[str, ...]:
    """Return the fields of `parallelism` that `auto` chooses and that differ from the default.

    An explicit default value is indistinguishable from a value that the API server filled in.
    """
    default = Parallelism()
    return tuple(name for name in ("ici", "dcn", "rules") if getattr(spec.parallelism, name) != getattr(default, name))


def resolve_strategy(
    spec: TrainingJobSpec, shape: SliceShape, pod_memory_bytes: int | None = None
) -> tuple[TrainingJobSpec, Choice | None]:  # None: no choice
    """Return a spec with an explicit mesh, and how the planner chose it.

    `pod_memory_bytes` is the memory of a pod without its volumes. None: unknown, so that nothing moves there.

    If nothing fits, the spec gets the default mesh and `remat: full`. The errors then describe the most memory-saving
    configuration.
    """
    if not is_auto(spec):
        return spec, None
    choice = choose_strategy(spec, shape, pod_memory_bytes)
    if choice:
        return choice.chosen.apply(spec), choice
    parallelism = spec.parallelism.model_copy(update={"strategy": EXPLICIT})
    remat = "full" if spec.memory.remat == NO_REMAT else spec.memory.remat
    memory = spec.memory.model_copy(update={"remat": remat})
    return spec.model_copy(update={"parallelism": parallelism, "memory": memory}), None


def choose_strategy(
    spec: TrainingJobSpec, shape: SliceShape, pod_memory_bytes: int | None = None
) -> Choice | None:  # None: nothing fits
    """Return the best mesh and remat policy for a job."""
    choices = (search.run().choice for search in list_searches(spec, shape, pod_memory_bytes))
    return next((choice for choice in choices if choice), None)


def list_searches(
    spec: TrainingJobSpec, shape: SliceShape, pod_memory_bytes: int | None = None
) -> Iterator["MeshSearch"]:
    """Yield the searches for the mesh of a job, of which each one starts only if those before it find nothing."""
    search = describe_search(spec, shape)
    if search is None:
        return
    yield search
    offloaded = None if pod_memory_bytes is None or search.run().choice else offload_optimizer(spec)
    if offloaded and pod_memory_bytes is not None and may_hold_state(offloaded, shape, search.slices[0]):
        yield replace(search, max_host_bytes=max_offloaded_bytes(shape, pod_memory_bytes))


def describe_search(spec: TrainingJobSpec, shape: SliceShape) -> "MeshSearch | None":  # None: there are no slices
    """Return the search for the mesh of a job, which other jobs may share. It moves nothing to host memory."""
    remats = REMAT_POLICIES if spec.memory.remat == NO_REMAT else (spec.memory.remat,)
    slices = spec.slices.slice_counts
    # Only the fields that determine a plan: names, data and storage would make each job a separate cache entry.
    key_spec = TrainingJobSpec.model_construct(
        slices=spec.slices,
        parallelism=spec.parallelism,
        model=spec.model,
        data=Data.model_construct(train=(), packing=spec.data.packing),
        lora=spec.lora,
        objective=spec.objective and _describe_objective(spec.objective),
        training=spec.training.model_copy(update={"seed": 0, "steps": 1}),
        optimizer=Optimizer(
            type=spec.optimizer.type,
            trainable=spec.optimizer.trainable,
            average=spec.optimizer.average and Average(),
            adafactor=spec.optimizer.adafactor,
            muon=spec.optimizer.muon,
            sgd=spec.optimizer.sgd,
            learning_rate=1.0,
        ),
        precision=spec.precision,
        memory=spec.memory,
    )
    return MeshSearch(_SearchKey(key_spec), shape, slices, remats) if slices else None


def _describe_objective(objective: Objective) -> Objective:
    """Return an objective with only the fields that determine a plan."""
    if stored := objective.probabilities:
        stored = StoredProbabilities(uri="/", per_token=stored.per_token)
        return Objective(type=objective.type, distill=Distill(probabilities=stored))
    if objective.teacher is None:
        return Objective(type=objective.type)
    teacher = Teacher(model=objective.teacher.model, initialize_from=TeacherSource())
    features = Features(layers=objective.features.layers) if objective.features else None
    return Objective(type=objective.type, distill=Distill(teacher=teacher, features=features))


@dataclass(frozen=True)
class _SearchKey:
    """A hashable spec, as a cache key."""

    spec: TrainingJobSpec

    def __hash__(self) -> int:
        spec = self.spec
        return hash(
            (
                spec.model,
                spec.data.packing,
                spec.lora,
                spec.objective,
                spec.training,
                spec.parallelism,
                spec.optimizer,
                spec.precision,
                spec.memory,
            )
        )


@dataclass(frozen=True)
class SearchResult:
    """The result of a search, and its cost."""

    choice: Choice | None
    """None: nothing fits."""
    num_plans: int
    """Number of sizes that the search planned."""


@dataclass(frozen=True)
class MeshSearch:
    """A search for the mesh of a job. Equal searches have the same result, which is cached."""

    key: _SearchKey
    shape: SliceShape
    slices: Sequence[int]
    remats: Sequence[Remat]
    max_host_bytes: int | None = None
    """Host memory that a device may take, if the search moves the state of the optimizer there. None: it does not."""

    def run(self) -> SearchResult:
        """Return the result."""
        return _run_search(self)


@lru_cache(maxsize=256)
def _run_search(search: MeshSearch) -> SearchResult:
    counter = PlanCounter(search.max_host_bytes)
    choice = _search(search, search.key.spec, search.shape, counter)
    return SearchResult(choice, counter.num_plans)


def _search(search: MeshSearch, spec: TrainingJobSpec, shape: SliceShape, counter: PlanCounter) -> Choice | None:
    slices = search.slices
    is_timed = knows_rates(spec, shape, slices[-1])
    rated_shape = shape if is_timed else replace(shape, rates=TYPICAL_RATES)
    factorizations = list(_factorize_slice(spec, shape.num_devices))
    small = [
        factorization
        for factorization in factorizations
        if all(factorization.get(axis, 1) == 1 for axis in LAST_RESORT_AXES)
    ]
    is_full_search = is_timed and len(factorizations) <= MAX_FULL_SEARCH
    searches = (
        ((factorizations, SLICE_AXES),)
        if is_full_search
        else ((_limit_factorizations(small), SLICE_AXES[:-1]), (_limit_factorizations(factorizations), SLICE_AXES))
    )
    for searched, slice_axes in searches:
        candidates = _list_candidates(
            search, rated_shape, searched, slice_axes if slices[-1] > 1 else SLICE_AXES[:1], counter
        )
        finalists = sorted(candidates, key=_rank)
        fitting = (
            candidate for candidate in finalists if _fits_all_sizes(candidate.apply(spec), shape, slices, counter)
        )
        best = islice(fitting, FINALISTS)
        ranked = sorted(
            (_score_smallest_size(candidate, spec, rated_shape, slices, counter) for candidate in best), key=_rank
        )
        if ranked:
            return Choice(ranked[0], tuple(ranked[1 : 1 + RUNNERS_UP]), len(finalists), is_timed)
    return None


def _factorize_slice(spec: TrainingJobSpec, num_devices: int) -> Iterator[Mapping[Axis, int]]:
    """Yield the degrees that multiply to a slice's devices and divide the dims that they shard.

    Degrees of 1 are left out.
    """
    dims = resolve_network(spec).common_dims
    bounds = {
        "stage": dims["layers"] // spec.parallelism.pipeline.groups,
        "fsdp": dims["embed"],
        "expert": dims.get("experts", 1),
        "context": spec.training.sequence_length // (2 if spec.parallelism.context.exchange == "ring" else 1),
        "tensor": math.gcd(dims["heads"], dims.get("kv_heads", 0), dims["mlp"]),  # latent attention has no such dim
    }

    def extend(axes: Sequence[Axis], remaining: int, width: int) -> Iterator[dict[Axis, int]]:
        if not axes:
            yield {"data": remaining} if remaining > 1 else {}
            return
        axis, *rest = axes
        for degree in divisors(math.gcd(remaining, bounds[axis])):
            splits_width = axis in ("fsdp", "expert", "context")
            if splits_width and width % degree:
                continue
            for other_degrees in extend(rest, remaining // degree, width // degree if splits_width else width):
                yield {axis: degree, **other_degrees} if degree > 1 else other_degrees

    return extend(tuple(axis for axis in AXES if axis != "data"), num_devices, dims["embed"])


def _limit_factorizations(factorizations: Sequence[Mapping[Axis, int]]) -> list[Mapping[Axis, int]]:
    """Return at most `MAX_FACTORIZATIONS` factorizations, in their order.

    The selection prefers a small `data` degree, which replicates less of the state, and then few axes.
    """
    ranked = sorted(
        range(len(factorizations)), key=lambda index: (factorizations[index].get("data", 1), len(factorizations[index]))
    )
    return [factorizations[index] for index in sorted(ranked[:MAX_FACTORIZATIONS])]


def _list_candidates(
    search: MeshSearch,
    shape: SliceShape,
    factorizations: Sequence[Mapping[Axis, int]],
    outer: Sequence[Axis],
    counter: PlanCounter,
) -> Iterator[Candidate]:
    """Yield the candidates that fit at the largest size, each with the first remat policy that fits."""
    spec, num_slices, remats = search.key.spec, search.slices[-1], search.remats
    offload = None if search.max_host_bytes is None else (*(spec.memory.offload or ()), OPTIMIZER)

    def measure(
        factorization: Mapping[Axis, int], axis: Axis, remat: Remat
    ) -> Candidate | None:  # None: it does not fit
        measured = Candidate(
            AxisDegrees(**factorization), AxisDegrees(**{"data": 1, axis: INFERRED}), remat, 0.0, 0.0, offload
        )
        seconds = _step_seconds(measured.apply(spec), shape, num_slices, counter)
        return replace(measured, step_seconds=seconds, score=seconds) if seconds else None

    guess = 0
    for factorization in factorizations:
        for axis in outer:
            guess, candidate = find_first(lambda index: measure(factorization, axis, remats[index]), len(remats), guess)  # noqa: B023
            if candidate:
                yield candidate


def find_first[T](measure: Callable[[int], T | None], end: int, guess: int) -> tuple[int, T | None]:
    """Return the first index below `end` that has a result, and its result; `end` and None if none has one.

    All indices after that index have a result too. The search walks from a guess: neighbors mostly agree.
    """
    first, result = end, None
    for index in range(min(guess, end - 1), -1, -1):
        if (found := measure(index)) is None:
            break
        first, result = index, found
    if result is None:
        later = ((index, measure(index)) for index in range(guess + 1, end))
        first, result = next(((index, found) for index, found in later if found is not None), (end, None))
    return first, result


def _score_smallest_size(
    candidate: Candidate, spec: TrainingJobSpec, shape: SliceShape, slices: Sequence[int], counter: PlanCounter
) -> Candidate:
    """Return a candidate whose score includes the step time at the smallest size. The candidate fits all sizes."""
    if len(slices) == 1:
        return candidate
    return replace(
        candidate, score=candidate.step_seconds + _step_seconds(candidate.apply(spec), shape, slices[0], counter)
    )


def _rank(candidate: Candidate) -> tuple[float, int]:
    return candidate.rank


def _step_seconds(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, counter: PlanCounter) -> float:
    """Return the seconds of a step; 0 if the spec cannot train at this size."""
    size = counter.fit(SizePlanner(spec, shape), num_slices)
    roofline = predict_step(spec, shape, size.layout) if size and size.layout else None
    return roofline.seconds if roofline else 0.0


def _fits_all_sizes(spec: TrainingJobSpec, shape: SliceShape, slices: Sequence[int], counter: PlanCounter) -> bool:
    planner = SizePlanner(spec, shape)
    return all(counter.fit(planner, number) for number in slices)
