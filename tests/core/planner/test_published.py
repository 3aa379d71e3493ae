"""Published recipes that do not fit unchanged: each suggestion trains the same model on the same devices."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.corpus.suggestions import follow
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job

type Job = dict[str, Any]


def make_job(accelerator: str, topology: str, mesh: Job, model: Job, training: Job, **more: Any) -> Job:
    spec = {
        "slices": {"accelerator": accelerator, "topology": topology, "count": 1},
        "parallelism": {"ici": mesh},
        "model": model,
        "data": {"train": [{"name": "text", "path": "/data/text"}]},
        "training": {"steps": 1000, **training},
        "optimizer": {"learningRate": 0.0003},
        "checkpoint": {"uri": "/data/runs/job"},
        "runtime": {"volumes": [{"name": "data", "claimName": "data", "mountPath": "/data"}]},
        **more,
    }
    return {"metadata": {"name": "job"}, "spec": spec}


def size(vocab: int, embed: int, mlp: int, layers: int, heads: int, kv: int, head: int, **more: Any) -> Job:
    return {
        "vocabSize": vocab,
        "embedDim": embed,
        "mlpDim": mlp,
        "numLayers": layers,
        "numHeads": heads,
        "numKvHeads": kv,
        "headDim": head,
        **more,
    }


FULL = {"memory": {"remat": "full"}}
RECIPES: dict[str, Job] = {
    "405b on 128 v5p chips": make_job(
        "tpu-v5p",
        "4x4x8",
        {"fsdp": -1},
        size(128_256, 16_384, 53_248, 126, 128, 8, 128),
        {"globalBatchSize": 512, "sequenceLength": 8192},
        **FULL,
    ),
    "gemma-2b on 16 v5e chips, with whole logits": make_job(
        "tpu-v5e",
        "4x4",
        {"fsdp": -1},
        size(256_128, 2048, 16_384, 18, 8, 1, 256),
        {"globalBatchSize": 16, "sequenceLength": 8192},
        memory={"remat": "full", "lossChunks": 1},
    ),
    "mixtral on 32 v4 chips": make_job(
        "tpu-v4",
        "2x4x4",
        {"fsdp": -1},
        size(32_000, 4096, 14_336, 32, 32, 8, 128, experts={"count": 8, "perToken": 2, "capacityFactor": 4.0}),
        {"globalBatchSize": 1024, "sequenceLength": 4096},
        **FULL,
    ),
    "many experts on 512 v5p chips": make_job(
        "tpu-v5p",
        "8x8x8",
        {"fsdp": -1},
        size(129_280, 7168, 2048, 61, 128, 128, 128, experts={"count": 256, "perToken": 8, "capacityFactor": 32.0}),
        {"globalBatchSize": 512, "sequenceLength": 4096},
        **FULL,
    ),
    "llama2-7b on 64 v5p chips, without rematerialization": make_job(
        "tpu-v5p",
        "4x4x4",
        {"fsdp": -1},
        size(32_000, 4096, 11_008, 32, 32, 32, 128),
        {"globalBatchSize": 256, "sequenceLength": 10_240},
    ),
}


def check(job: Job) -> ValidationResult:
    return validate_job(job["metadata"]["name"], job["spec"])


FIRST = {
    "405b on 128 v5p chips": "spec.parallelism.ici: {fsdp: 16, tensor: 8}",
    "gemma-2b on 16 v5e chips, with whole logits": "spec.parallelism.ici: {fsdp: 8, context: 2}",
    "mixtral on 32 v4 chips": "spec.parallelism.ici: {fsdp: 2, expert: 8, tensor: 2}",
    "many experts on 512 v5p chips": "spec.parallelism.ici: {expert: 128, tensor: 4}",
    "llama2-7b on 64 v5p chips, without rematerialization": "spec.memory.remat: minimal",
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_mesh_of_auto_is_suggested_before_anything_else(name: str) -> None:
    (problem,) = check(RECIPES[name]).problems

    assert problem.nearest[0] == FIRST[name]
    assert not any("sequenceLength" in one or "topology" in one for one in problem.nearest)


def test_a_recipe_with_a_large_vocabulary_fits_with_logits_in_chunks() -> None:
    job = copy.deepcopy(RECIPES["gemma-2b on 16 v5e chips, with whole logits"])
    del job["spec"]["memory"]["lossChunks"]

    checked = check(job)

    assert checked.problems == ()
    assert checked.plan
    assert checked.plan.sizes[0].loss_chunks == 8


@pytest.mark.parametrize("name", RECIPES)
def test_every_suggestion_is_valid(name: str) -> None:
    job = RECIPES[name]
    (problem,) = check(job).problems

    for one in problem.nearest:
        checked = check(follow(job, replace(problem, nearest=(one,))))
        assert checked.problems == (), one
        assert checked.spec
        assert checked.spec.training.sequence_length == job["spec"]["training"]["sequenceLength"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_mesh_is_that_of_auto(name: str) -> None:
    job = copy.deepcopy(RECIPES[name])
    job["spec"]["parallelism"] = {"strategy": "auto"}
    (problem,) = check(RECIPES[name]).problems
    auto, followed = check(job).plan, check(follow(RECIPES[name], problem)).plan

    assert auto
    assert followed
    meshes = [plan.sizes[0].layout.ici for plan in (auto, followed) if plan.sizes[0].layout]
    assert (meshes[0], auto.spec.memory) == (meshes[1], followed.spec.memory)


def test_fixes_are_suggested_in_their_order() -> None:
    """Of ways that each do alone: the mesh, then rematerialization."""
    job = make_job(
        "tpu-v5e",
        "4x4",
        {"data": -1},
        size(32_000, 2048, 5504, 16, 16, 16, 128),
        {"globalBatchSize": 64, "sequenceLength": 2048},
    )
    (problem,) = check(job).problems

    kinds = [one.partition(":")[0] for one in problem.nearest]
    assert kinds == ["spec.parallelism.ici", "spec.memory.remat"]


def test_a_shorter_sequence_comes_last() -> None:
    job = make_job(
        "nvidia-h100",
        "1",
        {"data": -1},
        size(32_000, 2048, 5504, 16, 16, 16, 128),
        {"globalBatchSize": 64, "sequenceLength": 1_048_576},
        **FULL,
    )
    (problem,) = check(job).problems

    assert problem.nearest == ("spec.training.sequenceLength: 262144",)


def test_mesh_that_does_not_fill_a_larger_slice_is_chosen_again() -> None:
    job = make_job(
        "tpu-v5e",
        "2x2",
        {"fsdp": 4},
        size(32_000, 4096, 11_008, 32, 32, 32, 128),
        {"globalBatchSize": 64, "sequenceLength": 4096},
        **FULL,
    )
    (problem,) = check(job).problems

    way, *others = problem.nearest
    assert "spec.parallelism.ici: {" in way
    assert "spec.slices.topology: " in way
    assert all("spec.memory.offload: [optimizer]" in other for other in others)
    assert check(follow(job, problem)).problems == ()
