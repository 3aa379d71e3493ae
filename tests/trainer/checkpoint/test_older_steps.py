"""Steps that other versions saved: what an older Orbax lacks is not missed, what a newer trainer adds is no damage."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.support.trainer.shelf import at, read_record, step_path
from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.manifest import (
    Integrity,
    add_hash,
    hash_files,
    list_files,
    write_integrity,
)
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.state_shards import hash_shapes


@pytest.fixture
def events(tmp_path: Path) -> Iterator[AgentEvents]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield AgentEvents(file.fileno())


NEWER = {
    "a mark of success": ["commit_success.txt"],
    "that, times, shardings and shapes beside the arrays": [
        "commit_success.txt",
        "_CHECKPOINT_METADATA",
        "_sharding",
        "array_metadatas/process_0",
    ],
}


def save(events: AgentEvents, root: Path) -> Path:
    """Save a step as today's trainer does, and return its folder."""
    config = make_config(make_spec(root, root))
    saving = Checkpoints(root, config, make_world(1, 1), ProcessGroup(0, 1), "index", events)
    saving.save(7, make_state((4, 2), step=7))
    saving.wait()
    return step_path(root, 7)


@pytest.mark.parametrize("names", NEWER.values(), ids=NEWER.keys())
def test_a_step_of_an_orbax_that_did_not_write_something_yet_is_restored(
    names: list[str], events: AgentEvents, tmp_path: Path
) -> None:
    folder = save(events, tmp_path)
    for name in names:
        (folder / name).unlink()
    files = hash_files(at(folder), list_files(at(folder)))
    write_integrity(at(folder), read_record(folder).model_copy(update={"files": files}))

    assert_restored(events, tmp_path)


def test_a_step_that_a_newer_trainer_wrote_is_restored(events: AgentEvents, tmp_path: Path) -> None:
    path = save(events, tmp_path) / "integrity.json"
    record = json.loads(path.read_bytes())
    (fingerprint, *_) = record["files"].values()
    record["addedLater"] = fingerprint["addedLater"] = {"what": "nobody knows yet"}
    del record["sha256"]
    path.write_text(json.dumps(add_hash(record)))

    assert_restored(events, tmp_path)


def test_step_without_hashes_in_its_records_is_restored(events: AgentEvents, tmp_path: Path) -> None:
    path = save(events, tmp_path) / "integrity.json"
    record = json.loads(path.read_bytes())
    del record["sha256"]
    path.write_text(json.dumps(record))

    assert_restored(events, tmp_path)


def test_a_step_that_an_older_orbax_wrote_is_restored(events: AgentEvents, tmp_path: Path) -> None:
    """`older/` has the files of the same state by `AsyncCheckpointer(StandardCheckpointHandler())` of that release."""
    folder = at(tmp_path / "lineage-0/7")
    shutil.copytree(Path(__file__).parent / "older/orbax-0.11.0", folder.location)
    files = hash_files(folder, list_files(folder))
    shapes = hash_shapes(make_state((4, 2)))
    write_integrity(folder, Integrity(job_uid=UID, generation=1, step=7, data="index", state=shapes, files=files))

    assert_restored(events, tmp_path)


def assert_restored(events: AgentEvents, root: Path) -> None:
    config = make_config(make_spec(root, root))
    going_on = Checkpoints(root, config, make_world(2, 1), ProcessGroup(0, 1), "index", events)

    restored = going_on.restore(describe(make_state((1, 2))))

    assert restored is not None
    assert going_on.newest == 7
    for seen, want in zip(*map(jax.tree.leaves, (restored, make_state((4, 2), 7))), strict=True):
        assert np.array_equal(seen, want)
