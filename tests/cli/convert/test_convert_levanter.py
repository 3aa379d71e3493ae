"""`convert` of Levanter's configs."""

from typing import Any

import pytest

from trainingjob_api.network.resolve import resolve
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.optimizer import AdamW, Average, Muon
from trainingjob_api.spec.training import BatchSizes
from trainingjob_operator.cli.convert.commented_yaml import as_manifest
from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.levanter_rows import read_levanter
from trainingjob_operator.cli.convert.placeholders import fill_in
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.core.catalog import BUILTIN

LLAMA = {
    "data.train_urls": ["gs://corpus/train-{1..128}.jsonl.gz"],
    "data.cache_dir": "gs://cache",
    "data.tokenizer": "meta-llama/Llama-2-7b-hf",
    "model.type": "llama",
    "model.seq_len": 4096,
    "model.num_kv_heads": 32,
    "model.gradient_checkpointing": True,
    "model.use_flash_attention": True,
    "trainer.tracker": [{"type": "wandb", "project": "marin", "tags": ["llama"]}, {"type": "tensorboard"}],
    "trainer.mp": "p=f32,c=bfloat16",
    "trainer.train_batch_size": 256,
    "trainer.num_train_steps": 750000,
    "trainer.tensor_parallel_axes": ["mlp", "heads"],
    "trainer.checkpointer.keep": [{"every": 100, "until": 1000}, {"every": 500}],
    "trainer.checkpointer.save_interval": "30m",
    "optimizer.learning_rate": 4e-4,
    "optimizer.warmup": 5000,
    "optimizer.min_lr_ratio": 0.1,
    "optimizer.lr_schedule": "cosine",
    "epoch": 3,
    "frobnicate": 1,
}
GPT2 = {"model.type": "gpt2", "model.hidden_dim": 768, "model.scale_attn_by_inverse_layer_idx": True}


def convert(values: dict[str, Any]) -> tuple[TrainingJobSpec, DraftJob]:
    draft = DraftJob("job", "a file")
    read_levanter(values, draft)
    assert fill_in(draft, BUILTIN) == []
    spec = parse_spec(as_manifest(draft)["spec"]).spec
    assert spec
    return spec, draft


def test_a_llama_is_converted() -> None:
    spec, draft = convert(LLAMA)

    assert resolve(spec.model).num_parameters == PRESETS["llama2-7b"].parameters
    assert (spec.training.steps, spec.training.global_batch_size, spec.training.sequence_length) == (750000, 256, 4096)
    assert (spec.schedule.warmup, spec.schedule.final_fraction) == (5000, 0.1)
    assert (spec.precision.params, spec.precision.compute) == ("float32", "bfloat16")
    assert (spec.memory.remat, spec.checkpoint.save.every) == ("full", "30m")
    assert draft.get("checkpoint.keep.stages") == [{"every": 100, "until": 1000}, {"every": 500}]
    assert spec.metrics.wandb
    assert (spec.metrics.wandb.project, spec.metrics.wandb.tags) == ("marin", ("llama",))
    assert [kind.value for kind in spec.optimizer.weight_decay.exclude] == ["norm", "bias", "embedding"]


def test_lines_without_a_counterpart_have_a_reason() -> None:
    _, draft = convert(LLAMA)

    assert [omission.key for omission in draft.omissions] == [
        "data.cache_dir", "model.use_flash_attention", "trainer.tensor_parallel_axes", "frobnicate", "epoch",
    ]  # fmt: skip
    assert draft.get("data.train") == [
        {"name": "text", "format": "jsonl", "path": "gs://corpus", "pattern": "train-{1..128}.jsonl.gz"}
    ]
    assert draft.get("runtime.volumes") == [{"name": "runs", "claimName": "runs", "mountPath": "/runs"}]


IN_BUCKETS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "checkpoints": ({"trainer.checkpointer.base_path": "gs://runs/llama/"}, "checkpoint.uri", "gs://runs/llama/job"),
    "checkpoints on a node": ({"trainer.checkpointer.base_path": "/scratch"}, "checkpoint.uri", "/runs/run"),
    "a tokenizer's folder": (
        {"data.tokenizer": "gs://bucket/tokenizer"},
        "tokenizer",
        {"type": "huggingFace", "path": "gs://bucket/tokenizer"},
    ),
    "several files": (
        {"data.train_urls": ["gs://one/a.jsonl", "s3://two/b/*.parquet"]},
        "data.train",
        [
            {"name": "text-1", "format": "jsonl", "path": "gs://one/a.jsonl"},
            {"name": "text-2", "format": "parquet", "path": "s3://two/b", "pattern": "*.parquet"},
        ],
    ),
    "a file elsewhere": (
        {"data.train_urls": ["gs://one/a.jsonl", "/b.jsonl"]},
        "data.train",
        [{"name": "text", "path": "/data/train"}],
    ),
    "files of an unknown format": (
        {"data.train_urls": ["gs://one/a.array_record"]},
        "data.train",
        [{"name": "text", "path": "/data/train"}],
    ),
}


@pytest.mark.parametrize(("values", "path", "want"), IN_BUCKETS.values(), ids=IN_BUCKETS)
def test_paths_in_buckets_are_converted(values: dict[str, Any], path: str, want: Any) -> None:
    _, draft = convert(GPT2 | values)

    assert draft.get(path) == want
    assert (path in draft.fill_in) == ("/data/" in str(want) or want == "/runs/run")


BATCHES: dict[str, tuple[list[tuple[int, int]], BatchSizes, int]] = {
    "they grow": ([(0, 128), (1000, 256), (5000, 1024)], ((1, 128), (1001, 256), (5001, 1024)), 0),
    "they shrink": ([(0, 256), (1000, 128)], ((1, 256),), 1),
}


@pytest.mark.parametrize(("phases", "want", "left"), BATCHES.values(), ids=BATCHES)
def test_batch_sizes_of_a_schedule_begin_at_the_same_steps(
    phases: list[tuple[int, int]], want: BatchSizes, left: int
) -> None:
    spec, draft = convert(
        GPT2 | {"trainer.train_batch_size": [{"start": step, "value": size} for step, size in phases]}
    )

    assert spec.training.batch_sizes == want
    assert [omission.key for omission in draft.omissions].count("trainer.train_batch_size") == left


def test_a_gpt2_is_converted_with_the_defaults_of_levanter() -> None:
    spec, draft = convert(GPT2)

    assert resolve(spec.model).num_parameters == PRESETS["gpt2"].parameters
    assert (spec.training.steps, spec.training.global_batch_size) == (400_000, 32)
    assert [omission.key for omission in draft.omissions] == ["model.scale_attn_by_inverse_layer_idx"]


def test_the_dropout_of_a_gpt2_is_that_of_its_places() -> None:
    rates = {"model.resid_pdrop": 0.2, "model.embed_pdrop": 0.1, "model.attn_pdrop": 0.3}
    spec, draft = convert(GPT2 | rates)

    assert (spec.model.dropout.residual, spec.model.dropout.embedding) == (0.2, 0.1)
    (left,) = [omission for omission in draft.omissions if omission.key == "model.attn_pdrop"]
    assert left.reason.startswith("weights of attention have no dropout")


def test_the_repositories_of_tokenizer_and_weights_are_converted() -> None:
    spec, draft = convert(GPT2 | {"data.tokenizer": "my/tokenizer", "initialize_from_hf": "my/weights"})
    _, other = convert(GPT2 | {"data.tokenizer": "/mnt/tokenizer", "initialize_from_hf": True})

    assert spec.tokenizer.hugging_face
    assert (spec.tokenizer.type, spec.tokenizer.hugging_face.repository) == ("huggingFace", "my/tokenizer")
    assert spec.checkpoint.initialize_from
    assert spec.checkpoint.initialize_from.hugging_face
    assert spec.checkpoint.initialize_from.hugging_face.repository == "my/weights"
    assert "tokenizer" not in draft.fill_in
    assert "/mnt/tokenizer" in other.fill_in["tokenizer"]
    assert [left.key for left in other.omissions if left.key == "initialize_from_hf"]


def test_the_vocabulary_of_an_unknown_tokenizer_is_to_be_filled_in() -> None:
    _, draft = convert(GPT2 | {"data.tokenizer": "my/tokenizer"})

    assert "my/tokenizer" in draft.fill_in["model.vocabSize"]


def test_a_mixtral_has_experts() -> None:
    spec, _ = convert({"model.type": "mixtral", "data.tokenizer": "mistralai/Mixtral-8x7B-v0.1"})

    assert resolve(spec.model).num_parameters == PRESETS["mixtral-8x7b"].parameters
    assert spec.model.experts
    assert spec.model.experts.dispatch == "dropless"


ROPES: dict[str, tuple[dict[str, Any], float, str | None]] = {
    "a base": ({"theta": 5e5}, 5e5, None),
    "Llama 3": ({"type": "llama3"}, 5e5, "llama3"),
    "YaRN": ({"type": "yarn", "factor": 4.0, "mscale": 1.0}, 1e4, "yarn"),
    "linear": ({"type": "linear", "factor": 2.0}, 1e4, "linear"),
}


@pytest.mark.parametrize(("rope", "theta", "scaling"), ROPES.values(), ids=ROPES.keys())
def test_rotary_positions_are_converted(rope: dict[str, Any], theta: float, scaling: str | None) -> None:
    spec, _ = convert(LLAMA | {f"model.rope.{name}": value for name, value in rope.items()})

    assert spec.model.rope.theta == theta
    assert (spec.model.rope.scaling.type if spec.model.rope.scaling else None) == scaling


def test_the_sources_of_a_mixture_are_named() -> None:
    mixture = {
        "data.configs.open_web.train_urls": ["gs://x"],
        "data.configs.wiki.id": "y",
        "data.train_weights.wiki": 1,
    }
    spec, draft = convert(GPT2 | mixture)

    assert [(source.name, source.path) for source in spec.data.train] == [
        ("open-web", "/data/open-web"), ("wiki", "/data/wiki"),
    ]  # fmt: skip
    assert "open_web, wiki" in draft.fill_in["data.train"]


def test_lion_has_its_own_moments() -> None:
    spec, _ = convert(GPT2 | {"optimizer.type": "lion", "optimizer.beta1": 0.95, "optimizer.epsilon": 1e-8})

    assert (spec.optimizer.type, spec.optimizer.resolved().beta1) == ("lion", 0.95)


def test_muon_has_adam_for_other_tensors() -> None:
    given = {
        "type": "muon",
        "learning_rate": 0.02,
        "momentum": 0.9,
        "backend_steps": 6,
        "use_kimi_scaling": True,
        "beta1": 0.8,
    }
    decays = {"weight_decay": 0.2, "adam_weight_decay": 0.1}

    spec, draft = convert(GPT2 | {f"optimizer.{name}": value for name, value in (given | decays).items()})

    assert spec.optimizer.learning_rate == 0.02
    assert spec.optimizer.resolved() == Muon(momentum=0.9, newton_schulz_steps=6, rms_scale=0.2, adamw=AdamW(beta1=0.8))
    assert spec.optimizer.weight_decay.rate == 0.2
    assert [one.key for one in draft.omissions if one.key.startswith("optimizer.")] == ["optimizer.adam_weight_decay"]


def test_muon_of_levanter_has_no_weight_decay_by_default() -> None:
    spec, draft = convert(GPT2 | {"optimizer.type": "muon", "optimizer.lr": 0.02, "optimizer.nesterov": True})

    assert (spec.optimizer.weight_decay.rate, spec.optimizer.learning_rate) == (0, 6e-4)
    assert [one.key for one in draft.omissions if one.key.startswith("optimizer.")] == ["optimizer.lr"]


def test_a_limit_of_updates_is_kept() -> None:
    spec, draft = convert(GPT2 | {"optimizer.update_rms_clipping": 1.0, "optimizer.clip_update_norm": {"sigma": 6}})

    assert spec.optimizer.clip_update_rms == 1.0
    assert "optimizer.clip_update_norm" in {one.key.removesuffix(".sigma") for one in draft.omissions}


def test_a_moving_average_has_its_decay() -> None:
    name = "trainer.model_averaging"
    default, given, other = (
        convert(GPT2 | {f"{name}.{key}": value for key, value in values.items()})
        for values in ({"type": "ema"}, {"type": "ema", "beta": 0.99}, {"type": "ema_decay_sqrt", "beta": 0.99})
    )

    assert (default[0].optimizer.average, given[0].optimizer.average) == (Average(decay=0.999), Average(decay=0.99))
    assert other[0].optimizer.average is None
    assert [one.key for one in other[1].omissions if one.key.startswith(name)] == [f"{name}.type"]


def test_one_tracker_is_a_section() -> None:
    spec, _ = convert(GPT2 | {"trainer.wandb.project": "levanter", "trainer.wandb.entity": "team"})

    assert spec.metrics.wandb
    assert spec.metrics.wandb.entity == "team"


def test_stages_need_an_interval() -> None:
    _, draft = convert(GPT2 | {"trainer.checkpointer.keep": [{"until": 10}]})

    assert draft.get("checkpoint.keep") is None
    assert "`checkpoint.keep.stages` needs `every`" in [omission.reason for omission in draft.omissions]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model.type": "backpack"}, "model.type: backpack cannot be converted. It must be one of: gpt2, llama"),
        (GPT2 | {"model.activation_function": "tanh"}, "The model cannot be converted."),
    ],
)
def test_a_model_that_no_section_expresses_is_rejected(values: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        read_levanter(values, DraftJob("job", "a file"))


def test_epochs_without_a_number_of_steps_are_the_length_of_the_training() -> None:
    spec, draft = convert({**GPT2, "epoch": 3})

    assert (spec.training.epochs, spec.training.steps, spec.schedule.steps) == (3.0, None, 400_000)
    assert "epoch" not in {omission.key for omission in draft.omissions}


@pytest.mark.parametrize("epoch", [0, None])
def test_no_epochs_limit_nothing(epoch: int | None) -> None:
    spec, draft = convert({**GPT2, "epoch": epoch})

    assert (spec.training.epochs, spec.training.steps) == (None, 400_000)
    assert "epoch" not in {omission.key for omission in draft.omissions}


def test_steps_that_are_written_stay_beside_epochs() -> None:
    spec, draft = convert(LLAMA)

    assert (spec.training.epochs, spec.training.steps) == (None, 750_000)
    (left,) = [omission for omission in draft.omissions if omission.key == "epoch"]
    assert "write `training.epochs` instead" in left.reason


@pytest.mark.parametrize(
    ("shuffle", "want", "left"), [(True, True, []), (False, False, []), (100, True, ["data.shuffle"])]
)
def test_the_order_of_the_text_converts(shuffle: bool | int, want: bool, left: list[str]) -> None:
    spec, draft = convert({**GPT2, "data.shuffle": shuffle})

    assert spec.data.shuffle is want
    assert [one.key for one in draft.omissions if one.key == "data.shuffle"] == left
