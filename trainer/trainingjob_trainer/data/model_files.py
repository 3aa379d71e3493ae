"""What a checkpoint folder holds beside its steps, so that a step can be used without the job.

`model.json` describes the model, its number formats and its tokenizer. Tokenizer files are in the same folder.
"""

import json
import logging
from typing import Annotated

from pydantic import Field, ValidationError

from trainingjob_agent.shared_files import MAX_JSON_BYTES
from trainingjob_api.base import Open
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.huggingface.tokenizer_files import list_published_files, published_name
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
MODEL_FILE = "model.json"


class ModelFile(Open):
    """Content of `model.json`."""

    model: Model
    precision: Precision
    tokenizer: Tokenizer
    sequence_length: Annotated[int, Field(ge=1)]
    """Tokens of a sequence of the training."""


def keep_model_files(store: Store, spec: TrainingJobSpec) -> None:
    """Write what a checkpoint folder lacks. An error costs the files, not the training."""
    model_file = ModelFile(
        model=spec.model,
        precision=spec.precision,
        tokenizer=spec.tokenizer,
        sequence_length=spec.training.sequence_length,
    )
    content = json.dumps(model_file.model_dump(mode="json", by_alias=True), indent=1).encode()
    try:
        if _read(store, MODEL_FILE) != content:
            store.write(MODEL_FILE, (content,))
        if spec.tokenizer.path and _read(store, published_name(spec.tokenizer)) is None:
            for name, content in list_published_files(spec.tokenizer).items():
                store.write(name, (content,))
    except (OSError, ValueError, TrainingError) as error:
        LOG.warning("cannot describe the model in the checkpoint folder error=%s", error)


def read_model_file(store: Store) -> ModelFile | None:  # None: an older trainer wrote the folder
    """Return what `model.json` says.

    Raises:
        ValueError: the file cannot be read.
        OSError: the store does not respond.
    """
    content = _read(store, MODEL_FILE)
    if content is None:
        return None
    try:
        return ModelFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{store.locate(MODEL_FILE)} cannot be read: {place} {first['msg']}") from error


def _read(store: Store, name: str) -> bytes | None:  # None: it is missing
    try:
        return store.read(name, MAX_JSON_BYTES)
    except FileNotFoundError:
        return None
