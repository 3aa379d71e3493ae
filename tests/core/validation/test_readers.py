"""Whether one replica that reads for the others serves anything."""

from typing import Any

import pytest

from tests.corpus.cases import judge, load_example, set_at

JOBS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "a replica a slice": ("elastic", {}, True),
    "a fixed size of one": ("fixed", {}, False),
    "two replicas on two hosts of a slice": ("fixed", {"spec.parallelism.ici": {"data": 2, "fsdp": -1}}, True),
    "two replicas on one host": (
        "fixed",
        {"spec.parallelism.ici": {"data": 2, "fsdp": -1}, "spec.slices.topology": "1x2"},
        False,
    ),
}


@pytest.mark.parametrize(("base", "patch", "serves"), JOBS.values(), ids=JOBS.keys())
def test_one_replica_that_reads_is_warned_of_where_no_other_host_waits_for_it(
    base: str, patch: dict[str, Any], serves: bool
) -> None:
    job = load_example(base)
    for path, value in {**patch, "spec.checkpoint.restore": {"broadcastFrom": "oneReplica"}}.items():
        set_at(job, path, value)

    checked = judge(job)

    assert checked.problems == ()
    assert [one.path for one in checked.warnings if one.path == "spec.checkpoint.restore.broadcastFrom"] == (
        [] if serves else ["spec.checkpoint.restore.broadcastFrom"]
    )
