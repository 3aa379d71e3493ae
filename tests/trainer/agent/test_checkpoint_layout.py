"""Names of steps: written names are parsed, and no other name is a step."""

import pytest

from trainingjob_agent.checkpoint_layout import (
    StepName,
    Writer,
    hash_job,
    lineage_folder,
    parse_lineage,
    parse_step_name,
)

NAMES = {
    "20": StepName(20),
    "20.g3.s1.0123abcd": StepName(20, Writer("0123abcd", 3, 1)),
    "0.g10.s12.ffffffff": StepName(0, Writer("ffffffff", 10, 12)),
}


@pytest.mark.parametrize(("name", "want"), NAMES.items())
def test_a_name_is_parsed_as_it_was_written(name: str, want: StepName) -> None:
    assert parse_step_name(name) == want
    assert str(want) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "20.",
        "20.g3",
        "20.g3.s1",
        "20.g3.s1.0123ABCD",
        "20.g3.s1.0123abc",
        "20.g3.s1.0123abcd.quarantined",
        "020.g3.s1.0123abcd",
        "20.g03.s1.0123abcd",
        "20.g3.s-1.0123abcd",
        "٣.g3.s1.0123abcd",
        "20.damaged-3",
        "20.saving-3",
        f"{'9' * 30}.g3.s1.0123abcd",
    ],
)
def test_no_other_name_is_a_step(name: str) -> None:
    assert parse_step_name(name) is None


def test_lineages_are_numbered() -> None:
    assert [parse_lineage(name) for name in ("lineage-0", "lineage-12", "lineage-", "lineage-01", "0")] == [
        0,
        12,
        None,
        None,
        None,
    ]
    assert [parse_lineage(lineage_folder(number)) for number in (0, 12)] == [0, 12]


def test_jobs_have_different_short_hashes() -> None:
    assert hash_job("a") == hash_job("a")
    assert hash_job("a") != hash_job("b")
    assert parse_step_name(str(StepName(1, Writer(hash_job("a"), 1, 1))))
