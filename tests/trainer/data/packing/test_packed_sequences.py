"""Sequences of isolated documents: what a dataset holds after packing, and how it trains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import row_losses
from tests.support.trainer.texts import dataset_folder, fail, grow, index_of
from tests.support.trainer.training import ONE, Run, losses, numpy_tree, spec_with
from tests.trainer.models.test_sharded_model import PACKED
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Layout

BEST_FIT = {"data__packing": {"type": "bestFit"}, "training__sequenceLength": 4}
TEXT = {"a.txt": "abcde", "b.txt": "xy"}


def test_packed_documents_are_separate(tmp_path: Path) -> None:
    grow(tmp_path / "text", **TEXT)

    dataset = index_of(tmp_path, **BEST_FIT).train
    sequences = dataset.sequences(np.arange(dataset.num_sequences))

    a, b, c, d, e, x, y = (ord(letter) for letter in "abcdexy")
    assert sequences.tokens.tolist() == [[a, b, c, d], [e, x, y, 0]]
    assert sequences.targets.tolist() == [[b, c, d, e], [256, y, 256, 0]]
    assert sequences.loss_weights.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert sequences.segment_ids is not None
    assert sequences.positions is not None
    assert sequences.segment_ids.tolist() == [[1, 1, 1, 1], [1, 2, 2, 0]]
    assert sequences.positions.tolist() == [[0, 1, 2, 3], [0, 0, 1, 0]]


def test_a_restart_packs_nothing_again(tmp_path: Path) -> None:
    grow(tmp_path / "text", **TEXT)
    before = index_of(tmp_path, **BEST_FIT)
    (tmp_path / "text/a.txt").unlink()

    after = index_of(tmp_path, **BEST_FIT)

    numbers = np.arange(before.train.num_sequences)
    assert after.train.sequences(numbers).tokens.tolist() == before.train.sequences(numbers).tokens.tolist()
    assert after.report == before.report


IDENTITIES: dict[str, tuple[dict[str, Any], bool]] = {
    "concatenated": ({"type": "concat"}, True),
    "isolated": ({"isolateDocuments": True}, False),
    "best fit": ({"type": "bestFit"}, False),
}


@pytest.mark.parametrize(("packing", "is_same"), IDENTITIES.values(), ids=IDENTITIES)
def test_packing_is_part_of_the_identity(tmp_path: Path, packing: dict[str, Any], is_same: bool) -> None:
    grow(tmp_path / "text", **TEXT)
    plain = index_of(tmp_path, training__sequenceLength=2).train.dataset_hash

    packed = index_of(tmp_path, training__sequenceLength=2, data__packing=packing).train.dataset_hash

    assert (packed == plain) is is_same


def test_sequences_are_reported_by_source(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"long.txt": "a" * 20})
    grow(tmp_path / "more", **{f"{number}.txt": "ab" for number in range(6)})
    sources = [{"name": name, "path": str(tmp_path / folder)} for name, folder in (("long", "text"), ("short", "more"))]

    report = index_of(tmp_path, data__train=sources, **BEST_FIT).report

    assert [(one.name, one.rows) for one in report.sources] == [("long", 5), ("short", 3)]
    assert report.rows == 8
    assert not [one for one in report.warnings if "padding" in one]


def test_much_padding_is_reported(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{f"{number}.txt": "ab" for number in range(6)})

    report = index_of(tmp_path, data__packing={"type": "bestFit"}, training__sequenceLength=3).report

    warning = next(one for one in report.warnings if "padding" in one)
    assert warning.startswith("packing: 33% of the positions are padding: 6 rows of 3 tokens hold 6 documents. Use a")


def test_text_without_a_prediction_is_rejected(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "abc", "b.txt": "abc"})
    packing = {"data__packing": {"isolateDocuments": True}, "training__sequenceLength": 7}

    error = fail(lambda: index_of(tmp_path, **packing))

    assert (error.reason, error.path) == (FailureReason.DATA, "spec.data.train[0].path")
    assert "2 files give 8 tokens" in str(error)


def test_damaged_packing_is_reported(tmp_path: Path) -> None:
    grow(tmp_path / "text", **TEXT)
    index_of(tmp_path, **BEST_FIT)
    pieces = dataset_folder(tmp_path) / "pieces.bin"
    pieces.write_bytes(np.full(6, 1 << 40, np.int64).tobytes())

    error = fail(lambda: index_of(tmp_path, **BEST_FIT).train.sequences(np.array([0])))

    assert (error.reason, error.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")
    assert "is damaged" in str(error)


@each(
    "packing",
    {name: {"data__packing": {"type": name, "isolateDocuments": True}} for name in ("concat", "bestFit")},
    "bestFit",
)
def test_a_packed_batch_has_the_loss_of_its_documents(packing: dict[str, Any]) -> None:
    spec = spec_with(**packing)
    run = Run(spec, ONE)
    batch, params = run.batch(1), numpy_tree(run.state.params)

    total, weight = run.evaluate(run.state.params, batch)

    assert batch.segment_ids is not None
    length = spec.training.sequence_length
    rows = [np.asarray(one).reshape(-1, length) for one in (batch.tokens, batch.targets, batch.segment_ids)]
    documents = [
        np.append(tokens[segments == number], targets[segments == number][-1])
        for tokens, targets, segments in zip(*rows, strict=True)
        for number in range(1, segments.max() + 1)
    ]
    want = [row_losses(spec, params, document) for document in documents]
    assert len(documents) > len(rows[0])
    assert float(weight) == sum(map(len, want))
    assert float(total) == pytest.approx(sum(map(np.sum, want)), rel=1e-5)


@pytest.mark.thorough
@each("layout", {name: LAYOUTS[name] for name in PACKED[1:]}, PACKED[1])
def test_packed_training_does_not_depend_on_the_layout(layout: Layout) -> None:
    spec = spec_with(data__packing={"type": "bestFit"})

    assert losses(spec, layout) == pytest.approx(losses(spec, ONE), abs=1e-4)
