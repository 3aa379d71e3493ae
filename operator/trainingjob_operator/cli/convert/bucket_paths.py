"""Paths of a source that are in a bucket: a job reads them there, so users need not fill them in."""

import re
from typing import Any

from trainingjob_api.base import BUCKET_FILES, TEMPLATE_PATH, is_bucket
from trainingjob_api.spec.tokenizer import HUGGING_FACE, SENTENCE_PIECE, TOKENIZERS
from trainingjob_operator.cli.convert.draft_job import DraftJob

FORMATS = {"jsonl": "jsonl", "parquet": "parquet"}
"""Formats by the ending of files. Records of other files have fields that a source does not name."""
NAMES = re.compile(r"(.*)/([^/]*?[.](\w+?)([.](gz|zst))?)")
WILDCARDS = re.compile(r"[*?{\[]")


def checkpoints_in(value: Any, draft: DraftJob) -> str | None:  # None: it is no folder of a bucket
    """Return the folder of the job below the folder of all runs."""
    root = str(value).rstrip("/")
    return f"{root}/{draft.name}" if _is_plain(root) else None


def tokenizer_in(value: Any, _: DraftJob) -> dict[str, str] | None:  # None: it is not in a bucket
    """Return the tokenizer section of a file, or of a folder with tokenizer.json."""
    path = str(value).rstrip("/")
    if not _is_plain(path):
        return None
    kinds = {"json": TOKENIZERS, "model": SENTENCE_PIECE}
    return {"type": kinds.get(path.rpartition(".")[2], HUGGING_FACE), "path": path}


def template_in(value: Any) -> dict[str, str] | None:  # None: it is no template in a bucket
    """Return the chat template."""
    path = str(value)
    return {"path": path} if is_bucket(path) and re.fullmatch(TEMPLATE_PATH, path) else None


def text_in(value: Any, _: DraftJob) -> list[dict[str, str]] | None:  # None: some of it is not in a bucket
    """Return a source for each path or URL of text, with wildcards or without."""
    urls = value if isinstance(value, list) else [value]
    matches = [NAMES.fullmatch(str(url)) for url in urls]
    sources: list[dict[str, str]] = []
    for number, match in enumerate(matches, 1):
        if match is None or match[3] not in FORMATS or not _is_plain(match[1]):
            return None
        name, is_glob = "text" if len(urls) == 1 else f"text-{number}", bool(WILDCARDS.search(match[2]))
        location = {"path": match[1], "pattern": match[2]} if is_glob else {"path": match[0]}
        sources.append({"name": name, "format": FORMATS[match[3]], **location})
    return sources


def _is_plain(uri: str) -> bool:
    return re.fullmatch(BUCKET_FILES, uri) is not None
