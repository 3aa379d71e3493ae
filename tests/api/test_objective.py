"""The objective and the tokenizer: what follows from their fields, and what agents of older versions read."""

from typing import Any

import pytest

from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.objective import Dpo, Objective, Sft
from trainingjob_api.spec.tokenizer import ChatTemplate, Tokenizer


@pytest.mark.parametrize(
    ("objective", "want"),
    [
        (Objective(), False),
        (Objective(type="sft"), True),
        (Objective(type="sft", sft=Sft()), True),
        (Objective(type="sft", sft=Sft(loss_on="all")), False),
        (Objective(type="dpo"), True),
        (Objective(type="distill"), True),
    ],
)
def test_only_fine_tuning_on_answers_masks_prompts(objective: Objective, want: bool) -> None:
    assert objective.masks_prompts is want


@pytest.mark.parametrize(("kind", "want"), [("nextToken", 1), ("sft", 1), ("dpo", 2), ("distill", 1)])
def test_only_pairs_have_several_sequences(kind: Any, want: int) -> None:
    assert Objective(type=kind).sequences_per_example == want


@pytest.mark.parametrize(
    ("tokenizer", "want"),
    [
        (Tokenizer(), False),
        (Tokenizer(type="tokenizers", path="/t.json"), False),
        (Tokenizer(type="tokenizers", path="/t.json", begin_of_document="<s>"), True),
        (Tokenizer(type="huggingFace", path="/model"), True),
    ],
)
def test_a_folder_may_name_a_token_that_begins_documents(tokenizer: Tokenizer, want: bool) -> None:
    assert tokenizer.may_begin_documents is want


def test_older_agents_read_no_field_that_is_unset() -> None:
    source = TextSource(name="text", path="/data")

    assert set(Objective().model_dump()) == {"z_loss"}
    assert set(Tokenizer().model_dump()) == {"type", "path", "end_of_document"}
    assert not {"messages", "prompt", "completion", "chosen", "rejected"} & set(source.model_dump())


def test_fields_that_are_set_reach_agents() -> None:
    template = ChatTemplate(path="/chat.jinja")
    tokenizer = Tokenizer(type="huggingFace", path="/model", begin_of_document="<s>", chat_template=template)
    source = TextSource(name="chat", format="jsonl", path="/data", messages="messages")

    assert tokenizer.model_dump(by_alias=True)["chatTemplate"] == {"path": "/chat.jinja"}
    assert tokenizer.model_dump(by_alias=True)["beginOfDocument"] == "<s>"
    assert source.model_dump()["messages"] == "messages"
    assert Objective(type="sft", sft=Sft()).model_dump(by_alias=True)["sft"] == {"lossOn": "assistant"}
    assert Objective(type="dpo", dpo=Dpo()).model_dump(by_alias=True)["dpo"] == {"beta": 0.1, "labelSmoothing": 0.0}
