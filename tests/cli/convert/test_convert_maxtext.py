"""`convert` of MaxText's configs: all its models are networks of presets, and a config of a run is a valid job."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainingjob_api.network.resolve import resolve
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.presets.merge import merge_preset
from trainingjob_api.presets.registry import PRESETS, UNSUPPORTED
from trainingjob_api.spec.model import Model
from trainingjob_operator.cli.convert.commented_yaml import as_manifest
from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.maxtext_model import read_model
from trainingjob_operator.cli.convert.maxtext_rows import TABLE, read_maxtext
from trainingjob_operator.cli.convert.placeholders import fill_in
from trainingjob_operator.cli.convert.source_rows import find_row
from trainingjob_operator.cli.documents import KubectlLoader
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.core.catalog import BUILTIN

FILE = Path(__file__).parents[2] / "fixtures/convert/maxtext-models.yaml"
CONFIGS: dict[str, dict[str, Any]] = {
    name: group["family"] | keys
    for group in yaml.load(FILE.read_text(), Loader=KubectlLoader)  # noqa: S506  # it is a safe loader
    for name, keys in group["models"].items()
}
PADDED, SCALING, UNUSED = frozenset({"vocab_size"}), frozenset({"rope.scaling"}), frozenset({"mlp_dim"})
ROUTING_GROUPS = frozenset({"experts.groups"})
DIFFERENCES: dict[str, frozenset[str] | set[str]] = {
    **dict.fromkeys(("llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "llama3.3-70b", "olmo3-7b", "olmo3-32b"), SCALING),
    **dict.fromkeys(("gemma-2b", "gemma-7b", "gemma2-2b", "gemma2-9b", "gemma2-27b"), PADDED),
    **dict.fromkeys(("gemma3-4b", "gemma3-12b", "gemma3-27b"), PADDED),
    **dict.fromkeys(("deepseek2-236b", "deepseek3-671b", "deepseek3-671b-2dfsdp"), ROUTING_GROUPS),
    **dict.fromkeys(("qwen3-480b-a35b", "llama4-17b-16e"), UNUSED),
    "qwen3-30b-a3b": {*UNUSED, "rope.theta"},
    "qwen3-235b-a22b": {*UNUSED, "rope.theta"},
}
"""Where MaxText's files differ from the published models: it takes the scaling of Llama 3.1 from the name of the model,
pads tables of Gemma, and leaves routing groups to the command line. Limits of YaRN are written, or have their defaults.
An MLP that no layer has may have another width."""
IGNORED = {"init", "num_kv_heads", "head_dim", "experts.balance"}


def list_differences(one: Any, other: Any, path: str = "") -> set[str]:
    """Return the paths at which two models differ; None is an object that one of them lacks."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return set() if one == other else {path}
    names = {name: f"{path}.{name}" if path else name for name in one.keys() | other.keys()}
    return {
        found
        for name, inner in names.items()
        if inner not in IGNORED
        for found in list_differences(one.get(name), other.get(name), inner)
    }


def dump(model: Model) -> dict[str, Any]:
    """Return a model with the width of its experts, which may follow from another field."""
    values = model.model_dump()
    if model.experts:
        values["experts"]["mlp_dim"] = model.experts.mlp_dim or model.mlp_dim
    return values


@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_of_a_model_is_the_network_of_its_preset(name: str) -> None:
    converted, preset = (Model.model_validate(section) for section in (read_model(CONFIGS[name]), PRESETS[name].model))

    assert {path.removesuffix(".yarn") for path in list_differences(dump(converted), dump(preset))} == (
        DIFFERENCES.get(name, set())
    )
    assert converted.heads == preset.heads or preset.latent_attention
    if not DIFFERENCES.get(name, PADDED - PADDED) & PADDED:
        assert resolve(converted).num_parameters == PRESETS[name].parameters


def test_all_presets_with_a_config_in_maxtext_are_compared() -> None:
    others = {name for name in PRESETS if name.endswith("-base") or re.fullmatch(r"llama3.1.*-Instruct", name)}

    assert CONFIGS.keys() <= PRESETS.keys()
    assert len(CONFIGS) + len(others) == 60  # MaxText gives the names of `others` to the config of another model


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_of_a_model_becomes_a_valid_job(name: str) -> None:
    draft = DraftJob("job", "a file")

    read_maxtext(CONFIGS[name], draft)

    assert fill_in(draft, BUILTIN) == []
    assert {omission.reason for omission in draft.omissions if "does not know" in omission.reason} == set()


RUN = {
    "run_name": "c4_run",
    "model_name": "llama2-7b",
    "steps": 30,
    "per_device_batch_size": 6,
    "gradient_accumulation_steps": 2,
    "max_target_length": 4096,
    "learning_rate": 3e-4,
    "adam_b2": 0.99,
    "adamw_mask": ["bias", ".*norm"],
    "opt_type": "adamw",
    "lr_schedule_type": "cosine",
    "warmup_steps_fraction": 0.01,
    "ici_fsdp_parallelism": -1,
    "ici_tensor_parallelism": 2,
    "dcn_data_parallelism": -1,
    "remat_policy": "minimal_with_context",
    "hf_path": "allenai/c4",
    "tokenizer_path": "meta-llama/Llama-2-7b-hf",
    "checkpoint_period": 500,
    "enable_wandb": True,
    "wandb_project_name": "llama",
    "sa_block_q": 1024,
    "quantization": "int8w",
    "frobnicate": 3,
}


def convert(values: dict[str, Any]) -> DraftJob:
    draft = DraftJob("job", "a file")
    read_maxtext(values, draft)
    assert fill_in(draft, BUILTIN) == []
    return draft


def test_the_config_of_a_run_keeps_its_training() -> None:
    draft = convert(RUN)
    spec = parse_spec(as_manifest(draft)["spec"]).spec

    assert spec
    assert draft.spec["model"] == {"preset": "llama2-7b"}
    assert (spec.training.steps, spec.training.sequence_length) == (30, 4096)
    assert (spec.optimizer.learning_rate, spec.optimizer.resolved().beta2) == (3e-4, 0.99)
    assert [kind.value for kind in spec.optimizer.weight_decay.exclude] == ["norm", "bias"]
    assert (spec.schedule.type, spec.schedule.warmup) == ("cosine", "1%")
    assert (spec.parallelism.ici.fsdp, spec.parallelism.ici.tensor, spec.parallelism.dcn.data) == (-1, 2, -1)
    assert spec.checkpoint.save.every_steps == 500
    assert spec.metrics.wandb
    assert (spec.metrics.wandb.project, spec.metrics.wandb.api_key.secret_key_ref.name) == ("llama", "wandb")


def test_the_batch_of_a_device_is_that_of_the_slices_which_users_fill_in() -> None:
    draft = convert(RUN)

    assert draft.get("slices.topology") == "2x2x1"
    assert draft.get("training.globalBatchSize") == 6 * 2 * 4
    assert "12 for each device" in draft.fill_in["training.globalBatchSize"]


def test_the_tokenizer_of_a_repository_is_converted() -> None:
    draft = convert(RUN | {"tokenizer_type": "huggingface"})

    assert draft.get("tokenizer") == {
        "type": "huggingFace",
        "huggingFace": {"repository": "meta-llama/Llama-2-7b-hf"},
    }
    assert "tokenizer" not in draft.fill_in


def test_what_the_source_cannot_know_is_named() -> None:
    draft = convert(RUN)

    assert "allenai/c4" in draft.fill_in["data.train"]
    assert "meta-llama/Llama-2-7b-hf" in draft.fill_in["tokenizer"], "a SentencePiece model by default"
    assert {"slices", "checkpoint.uri", "runtime.volumes", "metrics.wandb"} <= draft.fill_in.keys()


def test_lines_without_a_counterpart_have_a_reason() -> None:
    reasons = {omission.key: omission.reason for omission in convert(RUN).omissions}

    assert reasons == {
        "sa_block_q": "the trainer chooses kernels and their tiles, and the plan names them",
        "quantization": "`precision.quantization` rounds both operands of a matmul to int8 or fp8",
        "frobnicate": "the converter does not know this key",
    }


TRANSLATED: dict[str, tuple[dict[str, Any], str, Any]] = {
    "int8": ({"quantization": "int8"}, "precision.quantization", {"type": "int8"}),
    "fp8": ({"quantization": "fp8"}, "precision.quantization", {"type": "fp8"}),
    "fp8 in all passes": ({"quantization": "fp8_full"}, "precision.quantization", {"type": "fp8"}),
    "a policy by another name": ({"remat_policy": "minimal_with_context"}, "memory", {"remat": "minimal"}),
    "a policy that is a list": (
        {"remat_policy": "save_qkv_proj"},
        "memory",
        {"remat": "custom", "save": ["query", "key", "value"]},
    ),
    "a policy that lists nothing": (
        {"remat_policy": "custom", "decoder_layer_input": "device"},
        "memory",
        {"remat": "full"},
    ),
    "a policy by tensor": (
        {"remat_policy": "custom", "context": "device", "mlpwo": "offload", "decoder_layer_input": "device"},
        "memory",
        {"remat": "custom", "save": ["attentionOutput"], "offload": ["mlpOutput"]},
    ),
    "optimizer state on the host": (
        {"remat_policy": "qkv_proj_offloaded", "optimizer_memory_host_offload": True},
        "memory",
        {"remat": "custom", "offload": ["query", "key", "value", "optimizer"]},
    ),
    "state on the host, which this optimizer lacks": (
        {"opt_type": "sgd", "remat_policy": "full", "optimizer_memory_host_offload": True},
        "memory",
        {"remat": "full"},
    ),
    "hyperparameters of another optimizer": (
        {"muon_beta": 0.9, "adam_b1": 0.8, "learning_rate": 0.1},
        "optimizer",
        {"learningRate": 0.1, "adamw": {"beta1": 0.8}, "weightDecay": {"exclude": []}},
    ),
    "muon": (
        {
            "opt_type": "muon",
            "learning_rate": 0.1,
            "muon_beta": 0.9,
            "muon_consistent_rms": 0.2,
            "muon_weight_decay": 0.1,
            "adam_b1": 0.8,
        },
        "optimizer",
        {
            "type": "muon",
            "learningRate": 0.1,
            "muon": {"momentum": 0.9, "rmsScale": 0.2, "adamw": {"beta1": 0.8}},
            "weightDecay": {"rate": 0.1, "exclude": []},
        },
    ),
    "plain gradient descent": (
        {"opt_type": "sgd", "learning_rate": 0.1},
        "optimizer",
        {"type": "sgd", "learningRate": 0.1, "weightDecay": {"rate": 0, "exclude": []}},
    ),
    "a constant inside the root": ({"adam_eps_root": 1e-12}, "optimizer.adamw.epsilonRoot", 1e-12),
    "logits in parts": ({"num_vocab_tiling": 4}, "memory.lossChunks", 4),
    "a circular pipeline": (
        {"num_pipeline_repeats": 2},
        "parallelism.pipeline",
        {"schedule": "circular", "repeats": 2},
    ),
    "a ring": ({"context_parallel_strategy": "ring"}, "parallelism.context.exchange", "ring"),
    "a gather": ({"context_parallel_strategy": "all_gather"}, "parallelism.context", None),
    "further tokens": (
        {"mtp_num_layers": 1, "mtp_loss_scaling_factor": 0.2},
        "model.multiTokenPrediction",
        {"depth": 1, "lossWeight": 0.2},
    ),
    "no further token": ({"mtp_num_layers": 0}, "model.multiTokenPrediction", None),
    "initial values of matrices": ({"dense_init_scale": 0.5}, "model.init", {"matrices": {"scale": 0.5}}),
    "initial values of matrices by their width": ({"dense_init_scale": 1.0}, "model.init", None),
    "dropout": ({"dropout_rate": 0.1}, "model.dropout", {"residual": 0.1, "embedding": 0.1}),
    "dropout that is off": ({"dropout_rate": 0.1, "enable_dropout": False}, "model.dropout", None),
    "formats": (
        {"mu_dtype": "bfloat16", "grad_dtype": "bfloat16", "matmul_precision": "highest"},
        "precision",
        {"moments": "bfloat16", "gradients": "bfloat16", "matmul": "highest"},
    ),
}


@pytest.mark.parametrize(("values", "path", "want"), TRANSLATED.values(), ids=TRANSLATED)
def test_an_option_has_the_value_of_its_field(values: dict[str, Any], path: str, want: Any) -> None:
    draft = DraftJob("job", "a file")

    read_maxtext({"model_name": "llama2-7b", **values}, draft)

    assert draft.get(path) == want
    assert [omission.key for omission in draft.omissions if omission.key in values] == []


def test_a_policy_without_a_counterpart_is_left_out() -> None:
    draft = DraftJob("job", "a file")

    read_maxtext({"model_name": "llama2-7b", "remat_policy": "save_all"}, draft)

    assert draft.get("memory") is None
    (left,) = [omission for omission in draft.omissions if omission.key == "remat_policy"]
    assert left.reason == "it is none of the policies of `memory.remat`"


def test_each_key_of_maxtext_has_a_row() -> None:
    keys = (FILE.parent / "maxtext-keys.txt").read_text().split()

    assert len(keys) > 450
    assert [key for key in keys if find_row(TABLE, key) is None] == []


def test_omitted_keys_have_the_values_of_maxtext() -> None:
    spec = convert({"model_name": "gpt3-52k"}).spec

    assert (spec["training"]["steps"], spec["training"]["sequenceLength"]) == (150_001, 2048)
    assert (spec["schedule"]["warmup"], spec["memory"]["remat"]) == ("10%", "full")
    assert spec["optimizer"] == {"learningRate": 3e-5, "weightDecay": {"exclude": []}}


def test_a_config_without_a_model_is_maxtext_s_default_model() -> None:
    model = Model.model_validate(read_model({"run_name": "x"}))

    assert (model.embed_dim, model.num_layers, model.mlp_dim, model.vocab_size) == (2048, 16, 7168, 32000)


OVERRIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({"model_name": "qwen3-8b"}, {}),
    "a dimension": ({"model_name": "qwen3-8b", "base_num_decoder_layers": 2}, {"numLayers": 2}),
    "half of the layers": ({"model_name": "gemma2-2b", "base_num_decoder_layers": 2}, {"numLayers": 4}),
    "capacity": ({"model_name": "mixtral-8x7b", "capacity_factor": 1.5}, {"experts": {"capacityFactor": 1.5}}),
    "routing groups": (
        {"model_name": "deepseek3-671b", "n_routing_groups": 4, "topk_routing_group": 2},
        {"experts": {"groups": {"count": 4, "perToken": 2}}},
    ),
}


@pytest.mark.parametrize(("values", "want"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_keys_beside_a_preset_replace_its_values(values: dict[str, Any], want: dict[str, Any]) -> None:
    section = read_model(values)

    assert section == {"preset": values["model_name"], **want}
    Model.model_validate(merge_preset(section, PRESETS)[0])


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({"model_name": "mixtral-8x7b"}, {"dispatch": "dropless"}),
        ({"model_name": "mixtral-8x7b", "capacity_factor": 1.5}, {"capacityFactor": 1.5}),
        ({"model_name": "qwen3-8b"}, None),
    ],
    ids=["no capacity", "a capacity", "no experts"],
)
def test_experts_are_dropless_unless_the_config_has_a_capacity(values: dict[str, Any], want: Any) -> None:
    assert convert(values).get("model.experts") == want


def test_options_beside_a_preset_that_are_read_with_others_are_named() -> None:
    draft = convert({"model_name": "qwen3-8b", "rope_type": "yarn", "capacity_factor": 2.0})

    assert [omission.key for omission in draft.omissions] == ["rope_type"]


REJECTED: dict[str, tuple[dict[str, Any], str]] = {
    **{name: ({"model_name": name}, f"Missing: {missing}.") for name, missing in UNSUPPORTED.items()},
    "an indexer": ({"decoder_block": "deepseek", "use_indexer": True}, "Missing: sparse attention"),
    "another block": ({"decoder_block": "qwen3_next"}, "decoder_block: qwen3_next cannot be converted"),
    "an unknown name": ({"model_name": "my-model"}, "model_name: my-model is unknown"),
    "hyper-connections": ({"mhc_expansion_rate": 4}, "Missing: hyper-connections"),
    "shared keys and values": ({"num_kv_shared_layers": 2}, "Missing: layers that share keys and values"),
    "bidirectional": ({"attention_type": "full"}, "Missing: attention that is not causal"),
}


@pytest.mark.parametrize(("values", "text"), REJECTED.values(), ids=REJECTED.keys())
def test_a_model_that_no_section_expresses_is_rejected(values: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandError) as error:
        read_model(values)

    assert text in str(error.value)


@pytest.mark.parametrize(("shuffles", "want"), [(True, None), (False, False)])
def test_the_order_of_the_text_converts(shuffles: bool, want: bool | None) -> None:
    assert convert({"model_name": "gpt3-52k", "enable_data_shuffling": shuffles}).get("data.shuffle") is want


LENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "one epoch is the default": ({"num_epoch": 1}, {"steps": 150_001}, []),
    "epochs alone": ({"num_epoch": 3}, {"epochs": 3}, []),
    "steps and epochs": ({"num_epoch": 3, "steps": 500}, {"steps": 500}, ["num_epoch"]),
}


@pytest.mark.parametrize(("values", "want", "left"), LENGTHS.values(), ids=LENGTHS)
def test_steps_that_are_written_come_before_epochs(
    values: dict[str, Any], want: dict[str, Any], left: list[str]
) -> None:
    draft = convert({"model_name": "gpt3-52k", **values})

    assert {name: one for name, one in draft.spec["training"].items() if name in ("steps", "epochs")} == want
    assert [omission.key for omission in draft.omissions] == left
    assert draft.get("schedule.steps") == (150_001 if "epochs" in want else None)
