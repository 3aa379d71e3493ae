"""What tests of conversations share: templates of three families, and records."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.support.trainer.texts import grow

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}\n"
    "    {{- message.content | trim ~ '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n"
    "{%- endif %}\n"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MARKED_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
)


SPECIAL = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>")
SPECIAL += ("<end_of_turn>", "<bos>", "<eos>")


def say(*turns: str) -> list[dict[str, Any]]:
    """Return a conversation of turns such as `user: hi`."""
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]


def write_records(path: Path, *records: Any) -> Path:
    """Write records as JSON Lines."""
    return grow(path.parent, **{path.name: "\n".join(json.dumps(record) for record in records)})


def chat_job(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return changes of a spec: fine-tuning on the conversations of `text/`, in ChatML of bytes."""
    grow(folder, **{"chat.jinja": CHATML})
    return {
        "objective": {"type": "sft"},
        "data__train": [{"name": "chat", "format": "jsonl", "path": str(folder / "text"), "messages": "messages"}],
        "tokenizer": {"chatTemplate": {"path": str(folder / "chat.jinja")}},
        **changes,
    }


def make_folder(folder: Path, template: str) -> Path:
    """Make the folder of a model whose tokenizer merges no bytes, but knows the special tokens of three families."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    options = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    return grow(folder, **{"tokenizer_config.json": json.dumps(options)})
