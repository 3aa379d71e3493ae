"""Names of a job's objects: its own, whatever was called the same before."""

from collections.abc import Callable

import pytest

from trainingjob_operator.core.names import (
    MAX_LABEL_LENGTH,
    base_jobset,
    config_map,
    longest_pod_name,
    network_policy,
    slice_jobset,
)

NAMES: dict[str, tuple[Callable[[str, str], str], str]] = {
    "the JobSet of the fewest slices": (base_jobset, "demo-17b78"),
    "the JobSet of an elastic slice": (lambda job, uid: slice_jobset(job, uid, 3), "demo-17b78-x3"),
    "the ConfigMap": (
        lambda job, uid: config_map(job, uid, 2, "0123456789abcdef0"),
        "demo-17b78-config-2-0123456789abcdef",
    ),
    "the NetworkPolicy": (network_policy, "demo-17b78-network"),
}


@pytest.mark.parametrize(("make", "want"), NAMES.values(), ids=NAMES.keys())
def test_a_child_is_named_after_its_job_and_no_namesake(make: Callable[[str, str], str], want: str) -> None:
    assert make("demo", "uid") == want
    assert make("demo", "another") != want


def test_the_longest_pod_name_counts_the_largest_numbers() -> None:
    assert longest_pod_name("demo", 100, 16) == "demo-e3b0c-x99-slice-0-15-xxxxx"
    assert len(longest_pod_name("d" * MAX_LABEL_LENGTH, 1, 1)) > MAX_LABEL_LENGTH
