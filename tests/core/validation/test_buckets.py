"""Folders of buckets: which are valid, and that they need no volume."""

import pytest

from tests.corpus.cases import judge, load_example, set_at


@pytest.mark.parametrize(
    "uri", ["gs://archive/run", "s3://archive/team/run", "s3://my.bucket-1/run/", "gs://abc/a=1/run"]
)
def test_a_bucket_needs_no_volume(uri: str) -> None:
    job = load_example("fixed")
    set_at(job, "spec.runtime.volumes", [])
    set_at(job, "spec.checkpoint.uri", uri)
    set_at(job, "spec.checkpoint.backup", {"uri": "s3://second/run"})
    set_at(job, "spec.checkpoint.initializeFrom", {"uri": "gs://third/run"})
    set_at(job, "spec.checkpoint.export", {"huggingFace": {"uri": "gs://fourth/run"}})

    checked = judge(job)

    assert (checked.problems, [one.path for one in checked.warnings]) == ((), [])


@pytest.mark.parametrize("uri", ["gs://corpus", "gs://corpus/", "s3://corpus/web", "s3://my.corpus/web/a=1/b.jsonl"])
def test_text_in_a_bucket_needs_no_volume(uri: str) -> None:
    job = load_example("fixed")
    set_at(job, "spec.data.train", [{"name": "web", "format": "jsonl", "path": uri}])
    set_at(
        job,
        "spec.evaluation",
        [{"name": "held-out", "path": "gs://corpus/held-out/", "everySteps": 10, "numBatches": 1}],
    )

    checked = judge(job)

    assert (checked.problems, [one.path for one in checked.warnings]) == ((), [])


@pytest.mark.parametrize(
    "uri", ["gs://archive", "gs://archive/", "gs://a/run", "s3://archive//run", "S3://archive/run"]
)
def test_a_uri_without_a_bucket_or_a_folder_is_rejected(uri: str) -> None:
    job = load_example("fixed")
    set_at(job, "spec.checkpoint.backup", {"uri": uri})

    assert [problem.path for problem in judge(job).problems] == ["spec.checkpoint.backup.uri"]
