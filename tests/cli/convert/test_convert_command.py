"""`convert` as a command: what it recognizes and prints, and the configs of Hugging Face."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support.command_line import CliRunner
from trainingjob_api.network.resolve import resolve
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.spec.model import Model
from trainingjob_operator.cli.entry_point import app

TINY = sorted((Path(__file__).parents[2] / "fixtures/huggingface").glob("*/config.json"))
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def call(*args: str, text: str | None = None) -> SimpleNamespace:
    result = CliRunner().invoke(app, ["convert", *args], input=text, catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def validate(job: str, folder: Path) -> int:
    path = folder / "job.yaml"
    path.write_text(job)
    return CliRunner().invoke(app, ["validate", str(path)]).exit_code


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("run.yml", "run_name: x\nmodel_name: llama2-7b\n", "MaxText"),
        ("run.yaml", "model: {type: gpt2}\ntrainer: {train_batch_size: 8}\n", "Levanter"),
        ("config.json", json.dumps(QWEN3_8B), "Hugging Face"),
    ],
)
def test_a_config_is_recognized_and_its_job_is_valid(name: str, content: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)

    result = call(str(tmp_path / name))

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"# Converted from {kind}'s {name}.\n")
    assert validate(result.out, tmp_path) == 0


def test_a_published_config_is_the_network_of_its_preset() -> None:
    result = call("-", text=json.dumps(QWEN3_8B))
    job = yaml.safe_load(result.out)

    assert result.code == 0
    assert resolve(Model.model_validate(job["spec"]["model"])) == resolve(
        Model.model_validate(PRESETS["qwen3-8b"].model)
    )


def test_each_line_that_is_left_out_is_a_comment_with_its_reason() -> None:
    comments = call("-", text=json.dumps(QWEN3_8B | {"frobnicate": [1]})).out.partition("# Left out")[2]

    assert "#   bos_token_id: 151643\n#     ids of tokens belong to the tokenizer.\n" in comments
    assert "#   frobnicate: [1]\n#     the converter does not know this key.\n" in comments
    assert "rope_theta" not in comments
    assert "attention_dropout" not in comments


def test_matrices_have_the_initial_values_of_the_library() -> None:
    jobs = (
        call(str(next(path for path in TINY if path.parent.name == "gpt2"))),
        call("-", text=json.dumps(QWEN3_8B | {"initializer_range": 0.01})),
    )

    assert [yaml.safe_load(job.out)["spec"]["model"]["init"] for job in jobs] == [
        {"std": 0.02, "matrices": {"std": 0.02, "scaleByDepth": True}},
        {"std": 0.01, "matrices": {"std": 0.01}},
    ]


def test_dropout_of_weights_of_attention_is_left_out_with_its_reason() -> None:
    path = next(path for path in TINY if path.parent.name == "gpt2")
    result = call(str(path))

    assert yaml.safe_load(result.out)["spec"]["model"]["dropout"] == {"residual": 0.1, "embedding": 0.1}
    reason = "weights of attention have no dropout: kernels whose memory is linear in the length hold no weights"
    assert f"#   attn_pdrop: 0.1\n#     {reason}.\n" in result.out


def test_what_to_fill_in_is_a_comment_above_its_line() -> None:
    lines = call("-", text="model_name: gpt3-52k\n").out.splitlines()

    for field, text in {"slices:": "holds the job.", "uri:": "folder of the checkpoints", "volumes:": "claims"}.items():
        row = next(number for number, line in enumerate(lines) if line.strip().startswith(field))
        above = " ".join(line.strip(" #") for line in lines[row - 2 : row] if line.strip().startswith("#"))
        assert text in above


@pytest.mark.parametrize("path", TINY, ids=lambda path: path.parent.name)
def test_the_config_of_each_architecture_becomes_a_job(path: Path, tmp_path: Path) -> None:
    result = call(str(path))

    assert "does not know this key" not in result.out
    assert result.code == 0, result.err
    assert validate(result.out, tmp_path) == 0


def test_the_decoder_of_text_is_converted_without_encoders() -> None:
    config: dict[str, Any] = {"model_type": "x", "text_config": QWEN3_8B, "vision_config": {"hidden_size": 8}}

    result = call("-", "--from", "huggingface", text=json.dumps(config))

    assert result.code == 0
    assert "# Left out" in result.out
    assert "vision_config" in result.out
    assert yaml.safe_load(result.out)["spec"]["model"]["embedDim"] == 4096


def test_a_published_config_that_omits_defaults_is_the_network_of_its_preset() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    result = call("-", text=json.dumps({"model_type": "gemma3", "text_config": text, "mm_tokens_per_image": 256}))
    model = Model.model_validate(yaml.safe_load(result.out)["spec"]["model"])

    assert result.code == 0
    assert resolve(model) == resolve(Model.model_validate(PRESETS["gemma3-4b"].model))


def test_a_name_of_a_run_becomes_the_name_of_the_job() -> None:
    assert yaml.safe_load(call("-", text="run_name: My_Run.1\n").out)["metadata"]["name"] == "my-run-1"


def test_an_include_is_named(tmp_path: Path) -> None:
    text = "data: !include data/web.yaml\nmodel: {type: gpt2}\ntrainer: {seed: 1}\n"

    assert "!include data/web.yaml" in call("-", text=text).out


def test_problems_that_are_left_go_to_standard_error() -> None:
    result = call("-", text="model_name: gpt3-52k\nmax_target_length: 4096\n")

    assert result.code == 1
    assert "spec.model.maxPositions" in result.err
    assert yaml.safe_load(result.out)["kind"] == "TrainingJob"


def test_a_line_break_in_a_key_does_not_end_a_comment() -> None:
    result = call("-", text='model_name: gpt3-52k\n"a\\nspec: b": "c\\nd"\n')

    assert '#   a spec: b: "c\\nd"' in result.out
    assert yaml.safe_load(result.out).keys() == {"apiVersion", "kind", "metadata", "spec"}


def test_a_long_value_is_shortened() -> None:
    result = call("-", text=f"model_name: gpt3-52k\nfrobnicate: {'x' * 200}\n")

    assert f'#   frobnicate: "{"x" * 69} ...\n' in result.out


def test_a_value_of_another_form_is_left_out() -> None:
    result = call("-", text="model_name: gpt3-52k\nsteps: many\n5: 6\n")

    assert '#   steps: "many"\n#     the value has another form than `training.steps`.' in result.out
    assert "#   5: 6\n" in result.out


REJECTED = {
    "a form of values": ("base_emb_dim: 8\nmlp_activations: 3", 2, "has a value of a form that MaxText does not have"),
    "no config": ("[1, 2]", 2, "must hold one config"),
    "unknown keys": ("a: 1", 2, "is no config of a known program. Name it: --from maxtext|levanter|huggingface."),
    "another architecture": ('{"model_type": "bert"}', 1, '`model_type` is "bert"'),
    "positions that no model section expresses": (
        json.dumps(QWEN3_8B | {"partial_rotary_factor": 0.5}),
        1,
        "`partial_rotary_factor` is 0.5, and only 1 is supported. The model cannot be converted.",
    ),
    "no model section": ("model_name: gemma4-31b", 1, "model_name: gemma4-31b cannot be converted."),
}


@pytest.mark.parametrize(("text", "code", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_what_cannot_be_converted_is_reported(text: str, code: int, message: str) -> None:
    result = call("-", text=text)

    assert (result.code, result.out) == (code, "")
    assert message in result.err
