"""Every numeric field of a spec, found in its models, and why some of them change no number of a step."""

from collections.abc import Iterator
from types import GenericAlias, UnionType
from typing import Any, Literal, TypeAliasType, get_args, get_origin

from pydantic import BaseModel

from trainingjob_api.spec.distillation import Teacher
from trainingjob_api.spec.job import TrainingJobSpec

LAYOUT = "the layout of the mesh: tests/trainer/test_step.py compares layouts, test_gradients.py in bfloat16"
PLANNED = "the planner makes a layout of it: tests/core/planner, and layouts are compared as said above"
OUTSIDE = "when or how often something happens beside the steps: no step knows it"
KEPT = "how much is kept on storage: no step knows it"
RETRIES = "when the job is given up: no step knows it"

OF_DISTILLATION = (
    "weight",
    "temperature",
    "weightSchedule.end",
    "temperatureSchedule.end",
    "features.weight",
    "features.weightSchedule.end",
    "features.layers.student",
    "features.layers.teacher",
)
NOT_OF_A_STEP = {
    "slices.count": PLANNED,
    "slices.min": PLANNED,
    "slices.max": PLANNED,
    "slices.allowed": PLANNED,
    **{
        f"parallelism.{network}.{axis}": LAYOUT
        for network in ("ici", "dcn")
        for axis in ("data", "stage", "fsdp", "expert", "context", "tensor")
    },
    **{
        f"parallelism.replicas.{field}": "the outer optimizer: tests/trainer/replicas/test_replica_rounds.py"
        for field in ("syncEvery", "learningRate", "momentum")
    },
    "parallelism.pipeline.microbatches": LAYOUT,
    "parallelism.pipeline.repeats": "the same layers in the same order: tests/trainer/models/test_pipeline.py",
    "training.maxPerDeviceBatch": PLANNED,
    "training.stopAtLoss.loss": "when training ends: tests/trainer/test_loop.py",
    "memory.lossChunks": "whole logits have the same losses: tests/trainer/models/test_chunked_loss.py",
    **{f"optimizer.lion.{beta}": "Lion has a test: tests/trainer/optim/test_lion.py" for beta in ("beta1", "beta2")},
    **{
        f"optimizer.muon.{field}": "Muon has a test: tests/trainer/optim/test_muon.py"
        for field in (
            "momentum",
            "newtonSchulzSteps",
            "rmsScale",
            "adamw.beta1",
            "adamw.beta2",
            "adamw.epsilon",
            "adamw.epsilonRoot",
        )
    },
    "optimizer.learningRates.scale": "a part of the tensors: tests/trainer/optim/test_tensor_rates.py",
    "optimizer.average.decay": "the average has a test: tests/trainer/optim/test_average.py",
    **{
        f"optimizer.adafactor.{field}": "Adafactor has a test: tests/trainer/optim/test_adafactor.py"
        for field in ("decayRate", "minFactoredSize")
    },
    "optimizer.sgd.momentum": "SGD has a test: tests/trainer/optim/test_sgd.py",
    **{f"lora.{field}": "LoRA has a test: tests/trainer/models/test_lora.py" for field in ("rank", "alpha", "dropout")},
    **{f"model.dropout.{field}": "tests/trainer/models/test_dropout.py" for field in ("residual", "embedding")},
    **{
        f"schedule.{field}": "it has a test: tests/trainer/optim/test_learning_rate.py"
        for field in ("steps", "wsd.decay", "polynomial.power", "cycles.count", "cycles.warmup")
    },
    **{f"objective.dpo.{field}": "tests/trainer/test_preferences.py" for field in ("beta", "labelSmoothing")},
    **{f"objective.distill.{field}": "tests/trainer/test_distillation.py" for field in OF_DISTILLATION},
    "objective.distill.probabilities.perToken": "tests/trainer/test_stored_distillation.py",
    "objective.distill.teacher.initializeFrom.step": "tests/trainer/checkpoint/test_teacher_params.py",
    "objective.zLoss": "it has a test: tests/trainer/models/test_z_loss.py",
    "checkpoint.save.everySteps": OUTSIDE,
    "data.prepare.parallelism": OUTSIDE,
    "checkpoint.keep.last": KEPT,
    "checkpoint.keep.stages.every": KEPT,
    "checkpoint.keep.stages.until": KEPT,
    "checkpoint.keep.best.count": KEPT,
    "checkpoint.snapshots.everySteps": OUTSIDE,
    "checkpoint.backup.keep": KEPT,
    "checkpoint.initializeFrom.step": "the saved parameters to start from: tests/trainer/checkpoint/test_initialize.py",
    "elastic.maxRestarts": RETRIES,
    "elastic.maxRestartsWithoutCommit": RETRIES,
    "protection.compareReplicas.everySteps": OUTSIDE,
    "protection.maxRollbacks": RETRIES,
    "evaluation.everySteps": OUTSIDE,
    "metrics.statistics.everySteps": OUTSIDE,
    "program.steps": "no step of the trainer: the number of steps that a program shows",
    **{f"profiling.{field}": OUTSIDE for field in ("startStep", "numSteps", "everySteps")},
    "evaluation.maxPerDeviceBatch": "scores are the same: tests/trainer/monitoring/test_evaluate_programs.py",
    "evaluation.numBatches": "how many batches a mean is of: tests/trainer/monitoring/test_evaluation.py",
    **{f"evaluation.samples.{field}": OUTSIDE for field in ("everySteps", "maxTokens", "temperature")},
    **{
        f"model.multiTokenPrediction.{field}": "it has a test: tests/trainer/models/test_multi_token_prediction.py"
        for field in ("depth", "lossWeight")
    },
    **{
        f"data.{field}": "which sequences a step has: tests/trainer/data/test_mixture.py"
        for field in ("train.weight", "temperature", "weightSchedule.fromStep", "weightSchedule.weights")
    },
    **{
        f"training.batchSchedule.{field}": "which sequences a step has: tests/trainer/data/test_sampler.py"
        for field in ("fromStep", "globalBatchSize")
    },
    **{
        f"{section}.{field}": "the documents of a text: tests/trainer/data/sources/test_token_arrays.py"
        for section in ("data.train", "evaluation")
        for field in ("tokens.endOfDocument", "synthetic.tokens", "synthetic.seed")
    },
    "metrics.everySteps": OUTSIDE,
    "data.fillInTheMiddle.share": "which documents are split: tests/trainer/data/test_middle_encoder.py",
    "training.epochs": "how many steps there are: tests/trainer/data/test_training_length.py",
    "scheduling.tolerations.tolerationSeconds": RETRIES,
    "ttlSecondsAfterFinished": KEPT,
    "activeDeadlineSeconds": RETRIES,
}
"""Numeric fields that change no number of a train step, each with the reason."""


def list_numeric_fields(model: type[BaseModel] = TrainingJobSpec, *above: str) -> Iterator[str]:
    """Yield the path of each field that takes a number, as a user writes it.

    The model of a teacher is left out: it computes what a model with the same fields does.
    """
    for name, field in model.model_fields.items():
        if model is Teacher and name == "model":
            continue
        path = (*above, field.alias or name)
        types = list(_list_types(field.annotation))
        if {int, float} & set(types):
            yield ".".join(path)
        for one in types:
            if issubclass(one, BaseModel):
                yield from list_numeric_fields(one, *path)


def _list_types(annotation: Any) -> Iterator[type]:
    """Yield the types in an annotation."""
    if isinstance(annotation, TypeAliasType):
        yield from _list_types(annotation.__value__)
    elif arguments := get_args(annotation):
        for one in arguments if get_origin(annotation) is not Literal else ():
            if isinstance(one, type | GenericAlias | UnionType | TypeAliasType) or get_origin(one):
                yield from _list_types(one)
    elif isinstance(annotation, type):
        yield annotation
