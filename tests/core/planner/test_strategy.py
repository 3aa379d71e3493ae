"""`strategy: auto`: what it takes, what it leaves, and that it is never worse than what people write."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.benchmarks.compiler_cases import DEEP, WIDE, job, training
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.choice import Choice
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.strategy import find_first
from trainingjob_operator.core.validation.validate import validate_job

EXAMPLES = Path(__file__).parents[3] / "crds/examples"
TPU = ("tpu-v5p-4-slices", "tpu-v5p-experts", "h100-2-nodes")
AUTO = {"strategy": "auto"}


def example(name: str, **sections: Any) -> dict[str, Any]:
    manifest = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    spec: dict[str, Any] = manifest["spec"] | sections
    return spec


def chosen(spec: dict[str, Any]) -> Plan:
    checked = validate_job("job", spec)
    assert checked.plan, checked.problems
    return checked.plan


def choice_of(plan: Plan) -> Choice:
    assert plan.choice
    return plan.choice


@pytest.mark.parametrize("name", TPU)
def test_it_is_never_worse_than_the_mesh_of_an_example(name: str) -> None:
    written, auto = (chosen(example(name, **changes)) for changes in ({}, {"parallelism": AUTO}))
    mine, theirs = predict_sizes(auto), predict_sizes(written)

    assert auto.allowed_sizes == written.allowed_sizes
    assert sum(one.seconds for one in mine.values()) <= sum(one.seconds for one in theirs.values())


@pytest.mark.parametrize("name", [*TPU, "demo"])
def test_chosen_fields_give_the_same_plan_if_set(name: str) -> None:
    auto = chosen(example(name, parallelism=AUTO))
    best = choice_of(auto).chosen
    degrees = {side: dict(getattr(best, side).items()) for side in ("ici", "dcn")}
    written = chosen(example(name, parallelism=degrees, memory={"remat": best.remat}))

    assert auto.spec.parallelism.strategy == "explicit"
    assert [one.layout for one in auto.sizes] == [one.layout for one in written.sizes]


def test_every_size_of_the_job_fits() -> None:
    slices = {"accelerator": "tpu-v5p", "topology": "4x4x4", "min": 1, "max": 7}

    plan = chosen(example("tpu-v5p-4-slices", slices=slices, parallelism=AUTO))

    assert plan.allowed_sizes == tuple(range(1, 8))


def test_it_computes_again_only_where_it_must() -> None:
    plans = [
        plan_job(auto("tpu-v5e", "4x4", model=WIDE | {"numLayers": layers}, training=training(256, 4096, 64)))
        for layers in (1, 64, 128, 512)
    ]

    assert [plan.spec.memory.remat for plan in plans] == ["none", "minimal", "saveAttention", "full"]


@pytest.mark.parametrize("end", [1, 2, 5])
def test_a_search_walks_from_its_guess_to_the_first_index_with_a_result(end: int) -> None:
    for first in range(end + 1):
        for guess in range(end + 1):
            measured: list[int] = []

            def measure(index: int, measured: list[int] = measured, first: int = first) -> int | None:
                measured.append(index)
                return 10 * index if index >= first else None

            assert find_first(measure, end, guess) == ((first, 10 * first) if first < end else (end, None))
            assert len(measured) == len(set(measured))
            if first == guess:
                assert len(measured) == (1 if first in (0, end) else 2), "the cost of a right guess"


def test_strategy_keeps_an_explicit_remat() -> None:
    plan = plan_job(auto("tpu-v5p", "2x2x1", model=WIDE, training=training(16, 256, 4), memory={"remat": "full"}))

    assert plan.spec.memory.remat == "full"


def auto(accelerator: str, topology: str, **sections: Any) -> TrainingJobSpec:
    spec = job(accelerator, topology, {}, **sections)
    return spec.model_copy(update={"parallelism": spec.parallelism.model_validate(AUTO)})


def test_choice_lists_the_runners_up() -> None:
    choice = choice_of(chosen(example("tpu-v5p-4-slices", parallelism=AUTO)))

    assert choice.has_known_rates
    assert choice.num_candidates > len(choice.runners_up) == 3
    assert all(one.rank >= choice.chosen.rank for one in choice.runners_up)


def test_choice_prefers_whole_sequences_and_layers() -> None:
    choice = choice_of(chosen(example("tpu-v5p-4-slices", parallelism=AUTO)))

    for one in (choice.chosen, *choice.runners_up):
        assert (one.ici.context, one.ici.stage, one.dcn.stage) == (1, 1, 1)


def test_candidate_is_described_on_one_line() -> None:
    choice = choice_of(chosen(example("tpu-v5p-4-slices", parallelism=AUTO)))

    assert choice.chosen.describe() == "ici fsdp=64 · dcn data=-1 · remat full"


def test_a_model_with_latent_attention_has_no_heads_of_keys_and_values() -> None:
    latent = {"keyValueRank": 64, "ropeDim": 16, "noRopeDim": 32, "valueDim": 32}
    model = {name: size for name, size in WIDE.items() if name not in ("numKvHeads", "headDim")}

    plan = plan_job(auto("tpu-v5p", "2x2x1", model=model | {"latentAttention": latent}, training=training(16, 256, 4)))

    assert plan.allowed_sizes == (1,)


def test_axes_that_split_the_width_divide_it_together() -> None:
    narrow = WIDE | {"embedDim": 2, "numHeads": 1, "numKvHeads": 1, "numLayers": 1}

    choice = choice_of(plan_job(auto("tpu-v5p", "2x2x1", model=narrow, training=training(16, 256, 4))))

    assert choice.num_candidates == 3 * 1  # data=4, and data=2 beside fsdp=2 or context=2: not these two together


def test_experts_may_be_spread() -> None:
    experts = {"experts": {"count": 8, "perToken": 2}}
    plan = plan_job(auto("tpu-v5p", "2x2x1", model=DEEP | experts, training=training(16, 256, 4)))

    assert choice_of(plan).num_candidates > 10


def test_choice_without_rates_has_no_times() -> None:
    choice = choice_of(chosen(example("demo", parallelism=AUTO)))

    assert not choice.has_known_rates


def test_job_that_fits_no_mesh_is_reported() -> None:
    spec = example("tpu-v5p-4-slices", parallelism=AUTO)
    spec["model"] |= {"numLayers": 1000, "embedDim": 65536, "mlpDim": 262144}
    spec["slices"] = {"accelerator": "tpu-v5p", "topology": "2x2x1", "count": 1}

    checked = validate_job("job", spec)

    assert checked.plan is None
    assert [problem.path for problem in checked.problems] == ["spec.model"]


def test_no_slices_are_no_choice() -> None:
    spec = example("tpu-v5p-4-slices", parallelism=AUTO)
    spec["slices"] = {"accelerator": "tpu-v5p", "topology": "4x4x4", "min": 4, "max": 2}

    assert {problem.path for problem in validate_job("job", spec).problems} == {"spec.slices.min"}


@pytest.mark.parametrize(
    ("beside", "path"),
    [
        ({"ici": {"fsdp": -1, "tensor": 4}}, "spec.parallelism.ici"),
        ({"dcn": {"fsdp": -1}}, "spec.parallelism.dcn"),
        ({"rules": {"embed": ["fsdp"]}}, "spec.parallelism.rules"),
    ],
    ids=["ici", "dcn", "rules"],
)
def test_chosen_fields_must_not_be_set(beside: dict[str, Any], path: str) -> None:
    (problem,) = validate_job("job", example("tpu-v5p-4-slices", parallelism=AUTO | beside)).problems

    assert problem.path == path
    assert problem.nearest == ("spec.parallelism.strategy: explicit",)


def test_defaults_of_the_api_server_do_not_count_as_set() -> None:
    default = {"ici": {"fsdp": -1}, "dcn": {"data": -1}, "rules": {}, "pipeline": {}}

    assert chosen(example("tpu-v5p-4-slices", parallelism=AUTO | default)).choice


def test_plan_records_the_choice_in_the_resolved_spec() -> None:
    spec = chosen(example("demo", parallelism=AUTO)).spec

    assert json.loads(spec.model_dump_json())["parallelism"]["strategy"] == "explicit"
