"""The folders of a job before a world: a job that has trained takes over nothing."""

import json
from pathlib import Path

import pytest

from tests.support.trainer.tiny import UID, make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.world import Span
from trainingjob_trainer.prepare.job_folder import claim_folder
from trainingjob_trainer.runtime.errors import TrainingError


def claim(root: Path, lineage: tuple[Span, ...] = (), *, uid: str = UID, committed: int = 0) -> str:
    """Claim the folder for a world of a job with takeover; return the owner."""
    config = make_config(make_spec(root, root, checkpoint__takeover=True), uid=uid)
    world = make_world(2, 1, lineage, uid=uid).model_copy(update={"committed": committed})
    claim_folder(StartWorld(config=config, world=world, process=0))
    found: str = json.loads((root / "OWNER").read_text())["uid"]
    return found


def test_two_jobs_with_takeover_do_not_take_a_folder_from_each_other(tmp_path: Path) -> None:
    assert [claim(tmp_path, uid=uid) for uid in ("first", "second", "second")] == ["first", "second", "second"]

    for world in ((), (Span(generation=1, first=1),)):
        with pytest.raises(TrainingError, match=r"UID second.* does not take it over again") as caught:
            claim(tmp_path, world, uid="first")
        assert caught.value.fatal
    assert claim(tmp_path, (Span(generation=1, first=1),), uid="second", committed=4) == "second"


@pytest.mark.parametrize(("lineage", "committed"), [((Span(generation=1, first=1),), 0), ((), 20)])
def test_a_world_with_a_past_takes_over_nothing(tmp_path: Path, lineage: tuple[Span, ...], committed: int) -> None:
    """An older trainer has written OWNER, and did not name the former owners."""
    (tmp_path / "OWNER").write_text('{"uid": "other", "job": "tests/other"}\n')

    with pytest.raises(TrainingError, match="of tests/other"):
        claim(tmp_path, lineage, committed=committed)

    assert claim(tmp_path) == UID
