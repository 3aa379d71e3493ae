"""`trainingjob run` with its checkpoints in a bucket: a lost slice, losses as in a folder, and a fresh start."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import requests

from e2e.cluster.run_program import ClusterError
from e2e.object_stores.servers import BUCKET, SERVE, ObjectServer
from tests.cli.test_run import TINY, end, start, wait_until_nothing_runs, write_job
from tests.cli.test_weights import call
from tests.support.builders import spec_manifest
from tests.support.trainer.cases import takes_all_cases

STEPS = 60
KILLED_AT = 30


class BucketReader:
    """Reads the objects that a server holds, without a client of this project."""

    def __init__(self, server: ObjectServer, folder: Path) -> None:
        self._server = server
        self._folder = folder

    def names(self) -> list[str]:
        if self._server.scheme == "s3":
            root = self._folder / "data" / BUCKET
            return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        found = requests.get(f"{self._server.url}/storage/v1/b/{BUCKET}/o", timeout=60).json()
        return [one["name"] for one in found.get("items", ())]

    def read(self, name: str) -> bytes:
        if self._server.scheme == "s3":
            return (self._folder / "data" / BUCKET / name).read_bytes()
        place = f"{self._server.url}/storage/v1/b/{BUCKET}/o/{requests.utils.quote(name, safe='')}"
        return requests.get(place, params={"alt": "media"}, timeout=60).content


# Journeys on the cluster train in a bucket of S3, so that `make test` needs no second run in one.
@pytest.fixture(params=SERVE if takes_all_cases() else ["gs"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, BucketReader]]:
    """Return a root in a bucket, and what reads the bucket."""
    folder = tmp_path / "server"
    folder.mkdir()
    try:
        with SERVE[request.param](folder) as server, patch.dict(os.environ, server.environment()):
            yield f"{request.param}://{BUCKET}/team/tiny", BucketReader(server, folder)
    except ClusterError as error:
        pytest.skip(f"the object store of {request.param}:// needs Go and its modules: {error}")


def losses(lines: bytes) -> dict[int, float]:
    records = map(json.loads, lines.splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def check_a_student_of_its_model(tmp_path: Path, uri: str, reader: BucketReader) -> None:
    """Check that a student with the weights of its teacher, both read from the bucket, begins without a divergence."""
    folder = tmp_path / "student"
    folder.mkdir()
    source = {"uri": uri, "step": STEPS}
    teacher = {"model": spec_manifest(**TINY)["model"], "initializeFrom": source}
    write_job(
        folder,
        training={**TINY["training"], "steps": 4},
        slices={**TINY["slices"], "max": 1},
        objective={"type": "distill", "distill": {"teacher": teacher}},
        checkpoint={"uri": f"{uri}-student", "initializeFrom": source},
        metrics={"everySteps": 1},
        runtime={"image": "x:1", "volumes": []},
    )

    code, out = end(start(folder))

    assert code == 0, out
    lines = map(json.loads, reader.read("team/tiny-student/metrics/metrics.jsonl").splitlines())
    first, *_, last = (line["teacher_divergence"] for line in lines if "teacher_divergence" in line)
    assert abs(first) < 1e-6 < last


@pytest.mark.slow
def test_a_job_without_volumes_loses_a_slice_and_trains_as_in_a_folder(
    bucket: tuple[str, BucketReader], tmp_path: Path
) -> None:
    uri, reader = bucket
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    changes = {
        "training": {**TINY["training"], "steps": STEPS},
        "slices": {**TINY["slices"], "min": 2},
    }
    save = {"save": {"everySteps": 20}}
    write_job(tmp_path / "there", **changes, checkpoint={"uri": uri, **save}, runtime={"image": "x:1", "volumes": []})
    write_job(tmp_path / "here", **changes, checkpoint={"uri": "/shared/tiny", **save})

    code, out = end(start(tmp_path / "there", "--kill-slice", "1", "--at-step", str(KILLED_AT)))
    assert code == 0, out
    assert f"checkpoints and metrics in {uri}" in out
    assert "host 0 of slice 1 failed: its process was killed (SIGKILL)" in out
    code, expected = end(start(tmp_path / "here"))
    assert code == 0, expected

    written = losses(reader.read("team/tiny/metrics/metrics.jsonl"))
    wanted = losses((tmp_path / "here/run/volumes/shared/tiny/metrics/metrics.jsonl").read_bytes())
    assert written == wanted
    assert max(written) == STEPS
    assert not (tmp_path / "there/run/volumes").exists() or not list((tmp_path / "there/run/volumes").iterdir())
    assert any(f"/{STEPS}." in name and name.endswith("integrity.json") for name in reader.names())

    sampled = call("sample", uri, "--prompt", "import ", "--max-tokens", "2")
    assert sampled.code == 0, sampled.err
    assert f"2 tokens from step {STEPS} of {uri}" in sampled.err
    check_a_student_of_its_model(tmp_path, uri, reader)

    wait_until_nothing_runs(tmp_path / "there/run")
    old = json.loads(reader.read("team/tiny/OWNER"))["uid"]
    code, out = end(start(tmp_path / "there", "--fresh"))
    assert code == 0, out
    assert json.loads(reader.read("team/tiny/OWNER"))["uid"] != old
