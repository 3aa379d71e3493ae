"""The folder of stored probabilities: parts, restarts, shares of several processes, and everything that is damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.texts import fail, grow
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import count_stored_bytes
from trainingjob_trainer.data import stored_probabilities
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.preparation.preparation_tracker import ignore_preparation
from trainingjob_trainer.data.stored_probabilities import Description, StoredRows, find_folder, open_stored, part_name
from trainingjob_trainer.data.token_cache import prepare_datasets, prepare_folder
from trainingjob_trainer.data.token_dataset import Sequences, TokenDataset
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.teach.write_probabilities import write_dataset

L, K = 4, 2
DATASET = TokenDataset("d" * 64, np.arange(45, dtype=np.uint16), L)  # 11 sequences
DESCRIPTION = Description("abc", 3, K, 272, L, 11)
FOLDER = find_folder(DATASET.dataset_hash)


def spec_of(root: str, per_token: int = K, **changes: Any) -> TrainingJobSpec:
    objective = {"type": "distill", "distill": {"probabilities": {"uri": root, "perToken": per_token}}}
    changes = {"training__sequenceLength": L, "objective": objective} | changes
    return TrainingJobSpec.model_validate(make_spec(Path("/unused/here"), Path("/unused"), **changes))


class CountedTeacher:
    """Returns the numbers of the sequences as entropies, and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def read(self, rows: Sequences, numbers: np.ndarray) -> StoredRows:
        self.calls.append(numbers.tolist())
        ids = np.stack([rows.targets, rows.targets + 1], axis=-1)
        entropy = np.broadcast_to(numbers[:, None], rows.tokens.shape)
        return StoredRows(ids, np.full(ids.shape, 0.5, np.float16), entropy.astype(np.float32))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_probabilities, "PART_BYTES", 3 * DESCRIPTION.sequence_bytes)


def write(root: str, teacher: CountedTeacher, share: tuple[int, int] = (0, 1)) -> None:
    write_dataset(open_store(root), DATASET, DESCRIPTION, teacher.read, 2, share)


def check_content(root: str) -> None:
    numbers = np.array([10, 0, 5, 5, 3])
    reader = open_stored(open_store(root), DATASET.dataset_hash, 11, spec_of(root))
    found = reader.read(numbers)
    assert np.array_equal(found.entropy, np.repeat(numbers[:, None], L, axis=1))
    assert np.array_equal(found.ids[..., 0], DATASET.sequences(numbers).targets)
    assert (found.shares == 0.5).all()


def test_the_bytes_of_a_token_are_those_of_the_plan() -> None:
    for vocab_size in (272, 1 << 16, (1 << 16) + 1):
        described = Description("abc", 3, 12, vocab_size, L, 1)
        assert described.record.itemsize == count_stored_bytes(12, vocab_size)


def test_all_parts_are_written_once(tmp_path: Path) -> None:
    first, again = CountedTeacher(), CountedTeacher()

    write(str(tmp_path), first)
    write(str(tmp_path), again)

    assert first.calls == [[0, 1], [2, 2], [3, 4], [5, 5], [6, 7], [8, 8], [9, 10]]
    assert again.calls == []
    check_content(str(tmp_path))


def test_a_restart_writes_what_is_missing(tmp_path: Path) -> None:
    write(str(tmp_path), CountedTeacher())
    (tmp_path / part_name(FOLDER, 1)).unlink()
    again = CountedTeacher()

    write(str(tmp_path), again)

    assert again.calls == [[3, 4], [5, 5]]
    check_content(str(tmp_path))


def test_processes_share_the_parts(tmp_path: Path) -> None:
    helper, leader = CountedTeacher(), CountedTeacher()

    write(str(tmp_path), helper, (1, 2))
    assert "missing or incomplete" in str(fail(lambda: check_content(str(tmp_path))))
    write(str(tmp_path), leader, (0, 2))

    assert [call[0] for call in helper.calls] == [3, 5, 9]
    assert [call[0] for call in leader.calls] == [0, 2, 6, 8]
    check_content(str(tmp_path))


def test_another_teacher_needs_another_folder(tmp_path: Path) -> None:
    write(str(tmp_path), CountedTeacher(), (1, 2))
    other = Description("other", 3, K, 272, L, 11)

    error = fail(lambda: write_dataset(open_store(str(tmp_path)), DATASET, other, CountedTeacher().read, 2))

    assert "has the probabilities of another teacher" in str(error)


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_bucket_holds_the_same(scheme: str, object_servers: ObjectServers) -> None:
    with object_servers.environment(scheme):
        root = new_root(scheme)
        write(root, CountedTeacher())
        check_content(root)


def cut(folder: Path) -> None:
    path = folder / "000003.bin"
    path.write_bytes(path.read_bytes()[:-1])


def damage_ids(folder: Path) -> None:
    path = folder / "000003.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)


def damage_shares(folder: Path) -> None:
    """Make one probability infinite: the exponent of a float16 alone."""
    path, record = folder / "000003.bin", np.dtype([("ids", "<u2", (2,)), ("shares", "<f2", (2,)), ("entropy", "<f4")])
    rows = np.frombuffer(path.read_bytes(), record).copy()
    rows["shares"][0, 0] = np.inf
    path.write_bytes(rows.tobytes())


def rewrite(folder: Path, content: str) -> None:
    (folder / "index.json").write_text(content)


Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, dict[str, Any], str, str]] = {
    "no folder": (
        lambda folder: folder.rename(folder.with_name("other")),
        {},
        "spec.objective.distill.probabilities.uri",
        "must hold the teacher's probabilities for the tokens of this job",
    ),
    "cut off": (cut, {}, "spec.objective.distill.probabilities.uri", "and should have"),
    "a part is missing": (
        lambda folder: (folder / "000002.bin").unlink(),
        {},
        "spec.objective.distill.probabilities.uri",
        "000002.bin is missing",
    ),
    "ids out of range": (
        damage_ids,
        {},
        "spec.objective.distill.probabilities.uri",
        "ids or probabilities out of range",
    ),
    "an infinite probability": (
        damage_shares,
        {},
        "spec.objective.distill.probabilities.uri",
        "ids or probabilities out of range",
    ),
    "no description": (
        lambda folder: rewrite(folder, "[]"),
        {},
        "spec.objective.distill.probabilities.uri",
        "describes no probabilities",
    ),
    "sizes out of range": (
        lambda folder: rewrite(folder, (folder / "index.json").read_text().replace("272", "-1")),
        {},
        "spec.objective.distill.probabilities.uri",
        "describes no probabilities",
    ),
    "other number": (lambda _: None, {"per_token": 3}, "spec.objective.distill.probabilities.perToken", "must be 2:"),
    "other vocabulary": (lambda _: None, {"model__vocabSize": 300}, "spec.model.vocabSize", "must be 272:"),
    "other length": (lambda _: None, {"training__sequenceLength": 8}, "spec.model.vocabSize", "the job 11 of 8"),
    "a link": (
        lambda folder: ((folder / "000000.bin").unlink(), (folder / "000000.bin").symlink_to("/etc/passwd")),
        {},
        "spec.objective.distill.probabilities.uri",
        "000000.bin",
    ),
}


@pytest.mark.parametrize(("damage", "changes", "path", "message"), DAMAGES.values(), ids=DAMAGES)
def test_what_cannot_be_used_is_an_error(
    tmp_path: Path, damage: Damage, changes: dict[str, Any], path: str, message: str
) -> None:
    write(str(tmp_path), CountedTeacher())
    damage(tmp_path / FOLDER)

    def use() -> None:
        spec = spec_of(str(tmp_path), **changes)
        open_stored(open_store(str(tmp_path)), DATASET.dataset_hash, 11, spec).read(np.arange(11))

    error = fail(use)

    assert error.path == path
    assert error.fatal
    assert message in str(error)
    assert error.value


def test_a_job_reads_the_probabilities_of_its_tokens(tmp_path: Path) -> None:
    grow(tmp_path, **{"text/a.txt": "once upon a time, and once more", "held/b.txt": "held out"})
    (tmp_path / "run").mkdir()
    held = [{"name": "held", "path": str(tmp_path / "held"), "everySteps": 1}]
    objective = {"type": "distill", "distill": {"probabilities": {"uri": str(tmp_path / "taught"), "perToken": K}}}
    changes = {"training__sequenceLength": L, "objective": objective, "evaluation": held, "data__shuffle": False}
    config = make_config(make_spec(tmp_path / "run", tmp_path / "text", **changes))
    (tmp_path / "taught").mkdir()
    store = open_store(str(tmp_path / "taught"))
    missing = fail(lambda: prepare_datasets(open_store(str(tmp_path / "run")), config, HostShare()))
    shuffled = config.spec.model_copy(update={"data": config.spec.data.model_copy(update={"shuffle": True})})

    text = prepare_folder(store, shuffled, {}, ignore_preparation).train
    assert isinstance(text, TokenDataset)
    description = Description("abc", 3, K, 272, L, text.num_sequences)
    write_dataset(store, text, description, CountedTeacher().read, 2)
    found = prepare_datasets(open_store(str(tmp_path / "run")), config, HostShare())

    assert missing.path == "spec.objective.distill.probabilities.uri"
    assert found.train.per_token == K
    assert found.train.stored_hash > 0
    assert found.evaluations["held"].per_token == 0
    rows = found.train.sequences(np.array([1, 0]))
    assert rows.stored is not None
    assert np.array_equal(rows.stored.ids[..., 0], rows.targets)
