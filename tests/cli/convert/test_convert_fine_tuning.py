"""`convert` of MaxText's fine-tuning: the objective, the fields of records, tokenizer, template and weights."""

from typing import Any

import pytest

from tests.cli.convert.test_convert_maxtext import convert
from trainingjob_api.parse.parser import parse_spec
from trainingjob_operator.cli.convert.commented_yaml import as_manifest

SFT = {"model_name": "llama2-7b", "use_sft": True, "chat_template_path": "maxtext/template.json"}


def test_fine_tuning_is_converted() -> None:
    draft = convert(SFT | {"sft_train_on_completion_only": True, "train_data_columns": ["conversation"]})
    spec = parse_spec(as_manifest(draft)["spec"]).spec

    assert spec
    assert spec.objective
    assert spec.objective.masks_prompts
    assert spec.data.train[0].messages == "conversation"
    assert (spec.tokenizer.type, spec.tokenizer.path) == ("huggingFace", "/data/model")
    assert spec.tokenizer.chat_template
    assert "maxtext/template.json" in draft.fill_in["tokenizer.chatTemplate"]
    assert {"data.train", "tokenizer"} <= draft.fill_in.keys()


def test_a_fine_tuning_with_the_tokenizer_of_a_repository_keeps_its_template() -> None:
    draft = convert(SFT | {"tokenizer_type": "huggingface", "tokenizer_path": "meta-llama/Llama-2-7b-chat-hf"})
    spec = parse_spec(as_manifest(draft)["spec"]).spec

    assert spec
    assert spec.tokenizer.hugging_face
    assert spec.tokenizer.chat_template
    assert {"tokenizer", "tokenizer.chatTemplate"} & draft.fill_in.keys() == {"tokenizer.chatTemplate"}


@pytest.mark.parametrize(
    ("columns", "want"),
    [
        ({}, {"messages": "messages"}),
        ({"train_data_columns": ["question", "answer"]}, {"prompt": "question", "completion": "answer"}),
        ({"train_data_columns": "text"}, {"messages": "messages"}),
    ],
)
def test_columns_of_a_fine_tuning_are_fields_of_its_records(columns: dict[str, Any], want: dict[str, str]) -> None:
    draft = convert({"model_name": "llama2-7b", "use_sft": True, **columns})

    (source,) = draft.get("data.train")
    assert {name: source.get(name) for name in want} == want
    assert draft.get("objective.sft.lossOn") == "all", "the default of the source"


@pytest.mark.parametrize(
    ("columns", "want"),
    [
        ({}, {"chosen": "chosen", "rejected": "rejected"}),
        ({"train_data_columns": ["good", "bad"]}, {"chosen": "good", "rejected": "bad"}),
        ({"train_data_columns": ["q", "good", "bad"]}, {"prompt": "q", "chosen": "good", "rejected": "bad"}),
    ],
)
def test_preferences_are_converted(columns: dict[str, Any], want: dict[str, str]) -> None:
    draft = convert(
        {"model_name": "llama2-7b", "use_dpo": True, "dpo_beta": 0.2, "dpo_label_smoothing": 0.0, **columns}
    )
    spec = parse_spec(as_manifest(draft)["spec"]).spec

    assert spec
    assert spec.objective
    assert spec.objective.dpo
    assert (spec.objective.type, spec.objective.dpo.beta) == ("dpo", 0.2)
    assert {name: getattr(spec.data.train[0], name) for name in ("prompt", "chosen", "rejected")} == {
        "prompt": None
    } | want
    assert {"data.train", "tokenizer", "checkpoint.initializeFrom"} <= draft.fill_in.keys()
    assert not [one.key for one in draft.omissions if "dpo" in one.key]


def test_options_of_fine_tuning_without_it_are_left_out() -> None:
    draft = convert(SFT | {"use_sft": False, "train_data_columns": ["text"]})

    assert draft.get("objective") is None
    assert {omission.key for omission in draft.omissions} == {"chat_template_path", "train_data_columns"}


def test_paths_in_buckets_are_converted() -> None:
    paths = {"tokenizer_path": "gs://models/llama", "chat_template_path": "gs://models/chat.jinja"}
    draft = convert(SFT | paths | {"base_output_directory": "gs://runs"})

    template = {"path": "gs://models/chat.jinja"}
    assert draft.get("tokenizer") == {"type": "huggingFace", "path": "gs://models/llama", "chatTemplate": template}
    assert draft.get("checkpoint.uri") == f"gs://runs/{draft.name}"
    assert not {"tokenizer", "tokenizer.chatTemplate", "checkpoint.uri"} & draft.fill_in.keys()
