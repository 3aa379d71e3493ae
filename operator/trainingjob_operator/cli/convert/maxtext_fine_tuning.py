"""Fine-tuning of MaxText: the objective, the fields of records, and the tokenizer with its chat template."""

from typing import Any

from trainingjob_operator.cli.convert.bucket_paths import template_in, tokenizer_in
from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.source_rows import Combined, Table, Values

PREFERENCES = {"beta": "dpo_beta", "labelSmoothing": "dpo_label_smoothing"}
"""Options of `objective.dpo`, and their names in MaxText."""
ROWS: Table = dict.fromkeys(
    (
        "use_sft",
        "use_dpo",
        *PREFERENCES.values(),
        "sft_train_on_completion_only",
        "chat_template_path",
        "train_data_columns",
    ),
    Combined(),
)
RECORDS = {"name": "chat", "format": "jsonl", "path": "/data/train"}
TOKENIZER = {"type": "huggingFace", "path": "/data/model"}
RECORDS_HINT = "the path and the format of your records in the pods."
TEMPLATE = {"path": "/data/chat_template.jinja"}
WEIGHTS = {"huggingFace": {"path": "/data/model"}}
"""Paths in the pods that users must replace."""


def read_fine_tuning(values: Values, draft: DraftJob) -> None:
    """Set objective, data and tokenizer of a fine-tuning."""
    template = values.get("chat_template_path")
    if values.get("use_dpo"):
        _read_preferences(values, draft)
    elif not values.get("use_sft"):
        if template:
            draft.omit("chat_template_path", template, "only conversations have a chat template")
        if columns := values.get("train_data_columns"):
            draft.omit("train_data_columns", columns, "`data.train[].column` names the field of a record")
        return
    else:
        loss_on = "assistant" if values.get("sft_train_on_completion_only") else "all"
        draft.set("objective", {"type": "sft", "sft": {"lossOn": loss_on}})
        draft.set_placeholder("data.train", [RECORDS | _name_fields(values)], RECORDS_HINT)
    if draft.get("tokenizer") is None and (tokenizer := tokenizer_in(values.get("tokenizer_path"), draft)):
        draft.set("tokenizer", tokenizer)
    draft.set_placeholder(
        "tokenizer", dict(TOKENIZER), "the folder of the model in the pods, with tokenizer and chat template."
    )
    if bucket_template := template_in(template):
        draft.set("tokenizer.chatTemplate", bucket_template)
    elif template:
        hint = f"the chat template in the pods. The source has `chat_template_path: {template}`."
        draft.set_placeholder("tokenizer.chatTemplate", dict(TEMPLATE), hint)


def _read_preferences(values: Values, draft: DraftJob) -> None:
    """Set the objective, the pairs of answers, and the weights of the reference."""
    options = {option: values[maxtext_key] for option, maxtext_key in PREFERENCES.items() if maxtext_key in values}
    draft.set("objective", {"type": "dpo", **({"dpo": options} if options else {})})
    match values.get("train_data_columns"):
        case [str(prompt), str(chosen), str(rejected)]:
            fields = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        case [str(chosen), str(rejected)]:
            fields = {"chosen": chosen, "rejected": rejected}
        case _:
            fields = {"chosen": "chosen", "rejected": "rejected"}
    draft.set_placeholder("data.train", [RECORDS | fields], RECORDS_HINT)
    draft.set_placeholder(
        "checkpoint.initializeFrom", WEIGHTS, "the weights of the fine-tuned model, which are the reference."
    )


def _name_fields(values: Values) -> dict[str, Any]:
    """Return the fields of a record: of a conversation, or of a prompt and its completion."""
    match values.get("train_data_columns", ["messages"]):
        case [prompt, completion]:
            return {"prompt": prompt, "completion": completion}
        case [messages]:
            return {"messages": messages}
        case _:
            return {"messages": "messages"}
