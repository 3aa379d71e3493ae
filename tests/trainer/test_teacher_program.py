"""The program that stores a teacher's probabilities: those of the teacher's logits, in each part and packing."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.reference import row_logits
from tests.support.trainer.texts import fail, grow
from tests.support.trainer.tiny import make_spec
from tests.support.trainer.training import numpy_tree
from tests.trainer.checkpoint.test_teacher_params import MODEL, save_teacher
from trainingjob_api.prepare_exchange import TeachAnswer, TeachRequest
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import describe_teacher
from trainingjob_trainer.data.stored_probabilities import FOLDER, Description, StoredReader
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.teach.__main__ import teach

L, K = 16, 5


def job(folder: Path, **changes: Any) -> TrainingJobSpec:
    source = {"uri": str(folder / "teacher"), "step": 1}
    objective = {"type": "distill", "distill": {"teacher": {"model": MODEL, "initializeFrom": source}}}
    changes = {"objective": objective, "training__sequenceLength": L} | changes
    return TrainingJobSpec.model_validate(make_spec(folder / "run", folder / "text", **changes))


def teach_into(folder: Path, spec: TrainingJobSpec, per_token: int = K) -> list[TeachAnswer]:
    answers: list[TeachAnswer] = []
    teach(TeachRequest(spec=spec, output=str(folder / "taught"), paths={}, per_token=per_token), answers.append)
    return answers


@pytest.mark.thorough
def test_the_stored_probabilities_are_those_of_the_teacher(tmp_path: Path) -> None:
    grow(tmp_path, **{"text/a.txt": "once upon a time, there was a word, and another one. " * 4})
    spec = job(tmp_path)
    save_teacher(tmp_path, spec, 1)

    answers = teach_into(tmp_path, spec)

    (folder,) = (tmp_path / "taught" / FOLDER).iterdir()
    description = Description(**json.loads((folder / "index.json").read_text()))
    assert answers[-1].is_complete
    assert answers[-1].done_sequences == answers[-1].total_sequences == description.num_sequences == 13
    assert len(jax.local_devices()) == 8, "the last call reads sequences twice"
    stored = StoredReader(open_store(str(tmp_path / "taught")), f"{FOLDER}/{folder.name}", description)
    rows = stored.read(np.arange(13))
    check_rows(spec, tmp_path, rows)
    before = (folder / "000000.bin").read_bytes()
    (folder / "000000.bin").unlink()
    teach_into(tmp_path, spec)
    assert (folder / "000000.bin").read_bytes() == before
    error = fail(lambda: teach_into(tmp_path, spec, per_token=4))
    assert "another teacher, seed or number per token" in str(error)


def check_rows(spec: TrainingJobSpec, folder: Path, rows: Any) -> None:
    described = describe_teacher(spec)
    assert described
    params = numpy_tree(split_model_of(described).init(1))
    (dataset,) = (folder / "taught/data").iterdir()
    tokens = np.fromfile(dataset / "tokens.bin", np.uint16)
    for number in (0, 7, 12):
        logits = row_logits(described, params, tokens[number * L : (number + 1) * L])
        p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        assert rows.entropy[number] == pytest.approx(-np.sum(p * np.log(p), axis=-1), abs=1e-4)
        ids, shares = rows.ids[number], rows.shares[number].astype(np.float64)
        own = np.take_along_axis(p, ids, axis=-1)
        assert np.all(shares >= own * (1 - 2e-3)), "a probability is kept, or raised to the limit"
        assert shares.sum(axis=-1) == pytest.approx(1, abs=3e-3)
