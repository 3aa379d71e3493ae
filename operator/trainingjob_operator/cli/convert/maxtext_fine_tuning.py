"""Fine-tuning of MaxText: the objective, the fields of records, and the tokenizer with its chat template."""

from typing import Any

from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.source_rows import Part, Table, Values

ROWS: Table = dict.fromkeys(
    ("use_sft", "sft_train_on_completion_only", "chat_template_path", "train_data_columns"), Part()
)
RECORDS = {"name": "chat", "format": "jsonl", "path": "/data/train"}
TOKENIZER = {"type": "huggingFace", "path": "/data/model"}
TEMPLATE = {"path": "/data/chat_template.jinja"}
"""Paths in the pods that users must replace."""


def read_fine_tuning(values: Values, draft: DraftJob) -> None:
    """Set objective, data and tokenizer of a fine-tuning."""
    template = values.get("chat_template_path")
    if not values.get("use_sft"):
        if template:
            draft.leave("chat_template_path", template, "only conversations have a chat template")
        if columns := values.get("train_data_columns"):
            draft.leave("train_data_columns", columns, "`data.train[].column` names the field of a record")
        return
    loss_on = "assistant" if values.get("sft_train_on_completion_only") else "all"
    draft.set("objective", {"type": "sft", "sft": {"lossOn": loss_on}})
    draft.ask("data.train", [RECORDS | _name_fields(values)], "the path and the format of your records in the pods.")
    draft.ask("tokenizer", dict(TOKENIZER), "the folder of the model in the pods, with tokenizer and chat template.")
    if template:
        text = f"the chat template in the pods. The source has `chat_template_path: {template}`."
        draft.ask("tokenizer.chatTemplate", dict(TEMPLATE), text)


def _name_fields(values: Values) -> dict[str, Any]:
    """Return the fields of a record: of a conversation, or of a prompt and its completion."""
    match values.get("train_data_columns", ["messages"]):
        case [prompt, completion]:
            return {"prompt": prompt, "completion": completion}
        case [messages]:
            return {"messages": messages}
        case _:
            return {"messages": "messages"}
