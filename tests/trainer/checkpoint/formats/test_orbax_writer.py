"""The written state: files that Orbax itself writes and reads, and none before the folder exists."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from orbax.checkpoint._src.futures import signaling_client
from orbax.checkpoint._src.serialization.types import ParamInfo

from tests.support.trainer.meeting import renumber
from trainingjob_trainer.checkpoint.formats.orbax_writer import (
    STEP_METADATA_FILE,
    OrbaxWriter,
    PendingFolder,
    PendingWrite,
    process_options,
    world_options,
)
from trainingjob_trainer.runtime.process_group import ProcessGroup

STATE = {"step": jax.numpy.int32(7), "params": {"weights": jax.numpy.arange(12.0).reshape(3, 4)}}


type Copy = Callable[[Path, dict[str, Any]], PendingWrite]


@pytest.fixture
def copy() -> Iterator[Copy]:
    """A process that copies states; no thread of Orbax's is left waiting for their folders."""
    copies = []

    def copy(folder: Path, state: dict[str, Any]) -> PendingWrite:
        copies.append(OrbaxWriter(ProcessGroup(0, 1)).copy(str(folder), state))
        return copies[-1]

    yield copy
    for writing in copies:
        writing.give_up()


def write(copy: Copy, folder: Path) -> None:
    writing = copy(folder, STATE)
    folder.mkdir()
    writing.write()
    writing.finalize()


def list_names(folder: Path) -> set[str]:
    """Return the files of a step, those that are named by chance by their folder."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {str(path.parent if path.parent.name == "d" else path) for path in files}


def test_orbax_reads_the_written_state(copy: Copy, tmp_path: Path) -> None:
    write(copy, tmp_path / "7")

    with ocp.StandardCheckpointer() as reader:
        found = reader.restore(tmp_path / "7", target=STATE)
        metadata = reader.metadata(tmp_path / "7")

    assert found["step"] == 7
    assert np.array_equal(found["params"]["weights"], STATE["params"]["weights"])
    assert metadata.item_handlers.endswith("StandardCheckpointHandler")
    assert metadata.init_timestamp_nsecs <= metadata.commit_timestamp_nsecs


def test_the_files_are_those_of_orbax_own_checkpointer(copy: Copy, tmp_path: Path) -> None:
    write(copy, tmp_path / "ours")
    with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as saver:
        saver.save(tmp_path / "theirs", args=ocp.args.StandardSave(STATE))
    ours, theirs = [tmp_path / name for name in ("ours", "theirs")]

    assert list_names(ours) == list_names(theirs)
    assert (
        json.loads((ours / STEP_METADATA_FILE).read_text()).keys()
        == json.loads((theirs / STEP_METADATA_FILE).read_text()).keys()
    )


def test_nothing_is_written_before_the_folder_is_there_and_the_state_may_be_consumed_before(
    copy: Copy, tmp_path: Path
) -> None:
    state = {"weights": jax.numpy.full((256, 256), 7.0)}
    consume = jax.jit(lambda old: jax.tree.map(lambda leaf: leaf * 0, old), donate_argnums=0)

    writing = copy(tmp_path / "7", state)
    after = consume(state)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "7").mkdir()
    writing.write()
    writing.finalize()

    assert np.all(OrbaxWriter(ProcessGroup(0, 1)).restore(str(tmp_path / "7"), after)["weights"] == 7)


def test_no_process_communicates_while_a_state_is_copied(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []
    client = signaling_client.ThreadSafeKeyValueSignalingClient
    for name in ("key_value_try_get", "blocking_key_value_get", "key_value_set"):
        monkeypatch.setattr(client, name, lambda *arguments, name=name, **options: requested.append(name))

    assert copy(tmp_path / "7", STATE).problem == ""
    assert requested == []


def test_cancelled_copy_ends_silently(copy: Copy, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writing = copy(tmp_path / "7", STATE)
    (part,) = writing._parts

    with caplog.at_level(logging.WARNING):
        writing.give_up()
        with pytest.raises(CancelledError):
            part.result(timeout=10)

    assert (caplog.messages, list(tmp_path.iterdir())) == ([], [])


def test_a_state_that_cannot_be_copied_is_a_problem_and_no_error(copy: Copy, tmp_path: Path) -> None:
    gone = jax.numpy.ones(3)
    gone.delete()

    assert "deleted" in copy(tmp_path / "7", {"gone": gone}).problem


def test_paths_below_an_awaited_folder_are_awaited_too() -> None:
    folder = PendingFolder(epath.Path("there"))

    folder.mark_created()

    assert asyncio.run((folder / "below").await_creation()) == epath.Path("there/below")


class SharedParamInfo(ParamInfo):
    """Describes an array whose folder another thread resolves after this thread has found it pending."""

    @property
    def _parent_dir(self) -> Any:
        return self.__dict__["folders"].pop(0)

    @_parent_dir.setter
    def _parent_dir(self, folder: Any) -> None:
        self.__dict__["folders"] = [folder] * 2


@pytest.mark.parametrize("root", ["/shared/run", "gs://bucket/run"])
def test_an_expected_folder_may_have_any_root(root: str) -> None:
    expected = PendingFolder(epath.Path(root)) / "array"
    expected.mark_created()

    created = asyncio.run(expected.await_creation())

    assert (str(created), str(created / "0")) == (f"{root}/array", f"{root}/array/0")


def test_two_threads_may_await_the_folder_of_one_array() -> None:
    expected = PendingFolder(epath.Path("there"))
    expected.mark_created()
    info = SharedParamInfo(name="weights", parent_dir=expected)
    info.__dict__["folders"] = [expected, asyncio.run(expected.await_creation())]

    asyncio.run(info.await_path_creation())

    assert info.path == epath.Path("there/weights")
    info.__dict__["folders"] = [asyncio.run(expected.await_creation())] * 2
    assert info.parent_dir == epath.Path("there")


def test_orbax_gets_the_process_indices_of_jax() -> None:
    peers = renumber(ProcessGroup(1, 3), (2, 0, 1))

    everyone, alone = world_options(peers, "all"), process_options(peers)

    assert (everyone.primary_host, everyone.active_processes) == (2, {0, 1, 2})
    assert (alone.primary_host, alone.active_processes) == (0, {0})
