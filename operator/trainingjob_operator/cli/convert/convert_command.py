"""`trainingjob convert`: a TrainingJob from the config of another program."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from trainingjob_api.notation import slug
from trainingjob_api.problem import summarise
from trainingjob_operator.cli.convert.commented_yaml import write_job
from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.huggingface_source import read_huggingface
from trainingjob_operator.cli.convert.levanter_rows import read_levanter
from trainingjob_operator.cli.convert.maxtext_rows import read_maxtext
from trainingjob_operator.cli.convert.placeholders import fill_in
from trainingjob_operator.cli.convert.source_rows import Values
from trainingjob_operator.cli.documents import STDIN, KubectlLoader, read_documents
from trainingjob_operator.cli.errors import EXIT_NEGATIVE, UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.core.catalog import Catalog

type Source = Literal["maxtext", "levanter", "huggingface"]

NAMES: Mapping[Source, str] = {"maxtext": "MaxText", "levanter": "Levanter", "huggingface": "Hugging Face"}
READERS: Mapping[Source, Callable[[Values, DraftJob], None]] = {
    "maxtext": read_maxtext,
    "levanter": read_levanter,
    "huggingface": read_huggingface,
}
KEYS: Mapping[Source, tuple[str, ...]] = {
    "huggingface": ("model_type", "architectures"),
    "levanter": ("trainer", "optimizer"),
    "maxtext": ("base_emb_dim", "model_name", "decoder_block", "per_device_batch_size", "base_config", "run_name"),
}
"""Keys by which a config is recognized, the most certain first."""


class IncludeLoader(KubectlLoader):
    """YAML in which `!include` names another file. Its name stays where its content would be."""


IncludeLoader.add_constructor("!include", lambda loader, node: f"!include {node.value}")


def convert_file(file: str, source: Source | None, catalog: Catalog) -> int:
    """Print the job of a config; return the exit code. Remaining problems go to standard error.

    Raises:
        UsageError: the file cannot be read, or is no config of a known program.
        CommandError: no model section expresses its model.
    """
    config = _read_config(file)
    program = source or _recognize(file, config)
    draft = DraftJob(_find_name(file, config), f"{NAMES[program]}'s {_label(file)}")
    try:
        READERS[program](dict(_flatten(config)) if program == "levanter" else config, draft)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{_label(file)} has a value of a form that {NAMES[program]} does not have: {error}."
        ) from error
    problems = fill_in(draft, catalog)
    echo(write_job(draft), nl=False)
    if problems:
        echo(summarise(draft.name, problems), err=True)
    return EXIT_NEGATIVE if problems else 0


def _read_config(file: str) -> dict[str, Any]:
    documents = read_documents([file], IncludeLoader)
    if len(documents) != 1 or not isinstance(documents[0].content, dict):
        raise UsageError(f"{_label(file)} must hold one config: a YAML or JSON file with keys.")
    return {_to_line(key): value for key, value in documents[0].content.items()}


def _recognize(file: str, config: Mapping[str, Any]) -> Source:
    for source, keys in KEYS.items():
        if any(key in config for key in keys):
            return source
    raise UsageError(f"{_label(file)} is no config of a known program. Name it: --from {'|'.join(READERS)}.")


def _find_name(file: str, config: Mapping[str, Any]) -> str:
    """Return the name of the job: that of the run or of the model, else that of the file."""
    names = (config.get("run_name"), config.get("model_name"), "" if file == STDIN else Path(file).stem)
    name = next((str(name) for name in names if name and name != "default"), "")
    return slug(name.replace(".", "-"))[:40].strip("-") or "converted"


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections, with dots between the parts of a key."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{_to_line(key)}.")
        else:
            yield f"{prefix}{_to_line(key)}", value


def _to_line(text: object) -> str:
    """Return a text without line breaks, which would end a comment of the job."""
    return " ".join(str(text).split())


def _label(file: str) -> str:
    return "standard input" if file == STDIN else _to_line(Path(file).name)
