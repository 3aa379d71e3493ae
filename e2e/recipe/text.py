"""Build a corpus of real text from the Python packages that are installed: code, its documentation, and conversations.

`python text.py FOLDER` needs only what a trainer image has, so that it runs in a pod that mounts the shared volume.
It writes below FOLDER:

- `code/*.jsonl.gz`: the source files, a record each, with the field `text`
- `prose/*.parquet`: docstrings, and the descriptions of packages, a record each, with the column `text`
- `chat/*.jsonl`: questions about functions, answered by the first paragraph of their docstrings
- `held-out/...`: the same three, of every fiftieth file
- `tokenizer.json`: byte-level BPE (Sennrich et al., 2016) of 4,096 tokens, trained on all of it but `held-out`
- `chatml.jinja`: the chat template
- `sizes.json`: records and bytes of UTF-8 of each folder
"""

import ast
import gzip
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
HELD_OUT = 50
"""One of so many files is held out, with its docstrings and conversations."""
MAX_FILE = 60_000
"""Larger files are tables that a program wrote. In bytes."""
MIN_DOCSTRING = 60
"""Shorter docstrings repeat the name of what they document. In characters."""
MAX_ANSWER = 300
SHARD = 500
"""Source files in one file of records."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message.content + '<|im_end|>' }}
{%- endif %}
{{ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""

type Chat = list[dict[str, str]]


@dataclass(frozen=True)
class Texts:
    """What some source files contribute: themselves, their docstrings, and conversations about their functions."""

    code: list[str]
    prose: list[str]
    chats: list[Chat]


def find_packages() -> tuple[list[Path], list[Path]]:
    """Return the source files of this Python and its packages, and the descriptions of packages, both sorted."""
    roots = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    sources = {path for root in roots for path in root.rglob("*.py")}
    descriptions = {path for root in roots for path in root.glob("*.dist-info/METADATA")}
    return sorted(sources), sorted(descriptions)


def read_text(path: Path) -> str:
    """Return the text of a file; empty if it is too large, or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_FILE else ""
    except UnicodeDecodeError:
        return ""


def read_sources(sources: Iterable[str], seen: set[str]) -> Texts:
    """Return the texts of source files, without docstrings that were seen before; add theirs to `seen`."""
    texts = Texts([], [], [])
    for source in sources:
        texts.code.append(source)
        for owner, docstring in find_docstrings(source):
            if len(docstring) < MIN_DOCSTRING or docstring in seen:
                continue
            seen.add(docstring)
            texts.prose.append(docstring)
            if isinstance(owner, ast.FunctionDef):
                texts.chats.append(ask_about(owner, docstring))
    return texts


def find_docstrings(source: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield modules, classes and functions with their docstrings; nothing for other versions of Python."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node, docstring


def ask_about(function: ast.FunctionDef, docstring: str) -> Chat:
    """Return a question about a function, and the first paragraph of its docstring."""
    parameters = ", ".join(argument.arg for argument in function.args.args)
    answer = " ".join(docstring.split("\n\n", 1)[0].split())[:MAX_ANSWER]
    return [
        {"role": "user", "content": f"What does {function.name}({parameters}) do?"},
        {"role": "assistant", "content": answer},
    ]


def write_texts(folder: Path, texts: Texts) -> dict[str, dict[str, int]]:
    """Write the texts below a folder; return the records and the bytes of each kind."""
    for name in ("code", "prose", "chat"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for start in range(0, len(texts.code), SHARD):
        lines = (json.dumps({"text": text}) for text in texts.code[start : start + SHARD])
        with gzip.open(folder / "code" / f"part-{start // SHARD:03}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    pq.write_table(pa.table({"text": texts.prose}), folder / "prose/part-000.parquet", row_group_size=2000)
    lines = (json.dumps({"messages": chat}) for chat in texts.chats)
    (folder / "chat/part-000.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    spoken = [message["content"] for chat in texts.chats for message in chat]
    kinds = {"code": texts.code, "prose": texts.prose, "chat": spoken}
    return {
        kind: {"records": len(texts.chats) if kind == "chat" else len(some), "bytes": sum(map(count_bytes, some))}
        for kind, some in kinds.items()
    }


def count_bytes(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text.encode())


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main(folder: Path) -> None:
    """Write the corpus, the tokenizer and the template below a folder, and print the sizes."""
    paths, descriptions = find_packages()
    sources = [text for text in map(read_text, paths) if text.strip()]
    seen: set[str] = set()
    held_out = read_sources(sources[::HELD_OUT], seen)  # first, so that training does not read its docstrings
    train = read_sources((source for number, source in enumerate(sources) if number % HELD_OUT), seen)
    train.prose.extend(text for text in map(read_text, descriptions) if text.strip())
    sizes = {"train": write_texts(folder, train), "held-out": write_texts(folder / "held-out", held_out)}
    train_tokenizer([*train.code, *train.prose]).save(str(folder / "tokenizer.json"))
    (folder / "chatml.jinja").write_text(TEMPLATE)
    (folder / "sizes.json").write_text(json.dumps(sizes))
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
