"""The folder of a local run: its lock, its folders for volumes, and the files kept between runs."""

import sys
from pathlib import Path

import pytest

from trainingjob_api.spec.runtime import Volume
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.cli.local import bucket_folder
from trainingjob_operator.cli.local import workspace as workspace_module
from trainingjob_operator.cli.local.workspace import Workspace

SHARED = Volume(name="shared", claim_name="c", mount_path="/shared")
CORPUS = Volume(name="corpus", claim_name="d", mount_path="/corpus", read_only=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "run")


def test_two_runs_cannot_share_a_folder(workspace: Workspace) -> None:
    with workspace.locked(), pytest.raises(CommandError, match=r"is in use by process [0-9]+"), workspace.locked():
        pass

    with workspace.locked():
        pass


def test_memory_volumes_are_removed_with_the_run(workspace: Workspace) -> None:
    with workspace.locked():
        (workspace.memory / "of-a-pod").mkdir()
        assert workspace.memory.is_relative_to("/dev/shm")
        assert workspace.memory.stat().st_mode & 0o077 == 0

    assert not workspace.memory.exists()


def test_memory_volumes_of_a_killed_run_are_removed_by_the_next(workspace: Workspace) -> None:
    left = workspace.memory / "of-a-pod"
    left.mkdir(parents=True)

    with workspace.locked():
        assert not left.exists()


def test_without_memory_a_disk_does(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_module, "MEMORY", Path("/no/where"))

    with workspace.locked():
        assert workspace.memory == workspace.pods / "memory"
        assert workspace.memory.is_dir()


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(CommandError, match=r"Cannot write to .*/file/run: Not a directory. Choose another with --dir."),
        Workspace(tmp_path / "file" / "run").locked(),
    ):
        pass


def test_a_path_that_no_job_may_have(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="the path must have only letters, digits"):
        Workspace(tmp_path / "my runs")


def test_a_job_is_kept_whole(workspace: Workspace) -> None:
    with workspace.locked():
        assert workspace.load_job() is None
        workspace.save_job({"metadata": {"name": "a"}})
        workspace.save_job({"metadata": {"name": "b"}})

        assert workspace.load_job() == {"metadata": {"name": "b"}}


def test_a_folder_has_a_secret_that_later_runs_have_too_and_others_cannot_read(workspace: Workspace) -> None:
    with workspace.locked():
        secret = workspace.read_secret()
    with workspace.locked():
        assert workspace.read_secret() == secret
        workspace.delete_results()
        assert workspace.read_secret() == secret
        (workspace.root / "secret").write_text("")  # as a run leaves it that was killed
        another = workspace.read_secret()
        assert workspace.read_secret() == another

    assert len(secret) == 64
    assert secret != another
    assert (workspace.root / "secret").stat().st_mode & 0o777 == 0o600


def test_a_job_file_that_is_broken_is_not_overwritten(workspace: Workspace) -> None:
    with workspace.locked():
        (workspace.root / "job.json").write_text("{")

        with pytest.raises(CommandError, match=r"Cannot resume from .*job.json: .* Restart at step 0 with --fresh."):
            workspace.load_job()


def test_each_volume_has_a_separate_folder(workspace: Workspace) -> None:
    bound = workspace.bind_volumes([SHARED], [])

    assert bound == {"/shared": workspace.root / "volumes" / "shared"}
    assert bound["/shared"].is_dir()


def test_chosen_folder_replaces_a_volume(workspace: Workspace, tmp_path: Path) -> None:
    assert workspace.bind_volumes([SHARED, CORPUS], [f"corpus={tmp_path}"])["/corpus"] == tmp_path


REFUSED = {
    "no folder for what is only read": ([], "volume `corpus` is read-only and has no folder."),
    "not a pair": (["corpus"], "--volume corpus: must have the form NAME=FOLDER."),
    "no such volume": (["x=/tmp"], "--volume x=/tmp: the job has no volume `x`. It has: `shared`, `corpus`."),
    "no such folder": (["corpus=/no/where"], "--volume corpus=/no/where: /no/where must be a folder."),
}


@pytest.mark.parametrize(("chosen", "want"), REFUSED.values(), ids=REFUSED.keys())
def test_a_choice_that_cannot_be(chosen: list[str], want: str, workspace: Workspace) -> None:
    with pytest.raises(CommandError) as caught:
        workspace.bind_volumes([SHARED, CORPUS], chosen)

    assert str(caught.value).startswith(want)


def test_forgetting_takes_the_run_and_leaves_the_data(workspace: Workspace) -> None:
    with workspace.locked():
        shared = workspace.bind_volumes([SHARED], [])["/shared"]
        (shared / "demo").mkdir()
        (shared / "copies").mkdir()
        (shared / "corpus.txt").touch()
        workspace.save_job({})
        workspace.log(0, 1).touch()

        workspace.delete_results(str(shared / "demo"), str(shared / "copies"))

        assert workspace.load_job() is None
        assert [path.name for path in shared.iterdir()] == ["corpus.txt"]
        assert not workspace.log(0, 1).exists()


def test_checkpoints_elsewhere_are_not_deleted(workspace: Workspace, tmp_path: Path) -> None:
    with workspace.locked():
        workspace.save_job({})

        with pytest.raises(CommandError, match="move or delete them first"):
            workspace.delete_results(str(workspace.root / "demo"), str(tmp_path / "elsewhere"))

        assert workspace.load_job() == {}


def test_a_folder_of_a_bucket_is_deleted_for_the_job_that_owns_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    program = f"import os, sys; open({str(heard)!r}, 'w').write(' '.join([*sys.argv[1:], os.environ['AWS_REGION']]))"
    monkeypatch.setattr(bucket_folder, "PROGRAM", (sys.executable, "-c", program))
    variables = [{"name": "AWS_REGION", "value": "eu"}, {"name": "KEY", "secretKeyRef": {"name": "a", "key": "b"}}]
    with workspace.locked():
        workspace.save_job({"metadata": {"uid": "one"}, "spec": {"runtime": {"env": variables}}})

        workspace.delete_results("s3://runs/run")

        assert heard.read_text() == "s3://runs/run one eu"
        assert workspace.load_job() is None


def test_a_bucket_that_cannot_be_cleared_keeps_the_run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_folder, "PROGRAM", (sys.executable, "-c", "import sys; sys.exit('another job owns it')"))
    with workspace.locked():
        workspace.save_job({})

        with pytest.raises(CommandError, match="s3://runs/run cannot be deleted: another job owns it"):
            workspace.delete_results("s3://runs/run")

        assert workspace.load_job() == {}
