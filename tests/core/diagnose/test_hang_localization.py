"""The host that the other hosts wait for, by the observable state of its process; none if the states are alike."""

import random

import pytest

from trainingjob_api.protocol import Diagnostics, ProcessState
from trainingjob_operator.core.diagnose.hang_localization import EvidenceList, find_blocking_member

WAITS, COMPUTES = 0.01, 1.2


def clue(entered: int = 12, cores: float = WAITS, state: ProcessState = ProcessState.SLEEPING) -> Diagnostics:
    return Diagnostics(state=state, cores=cores, entered=entered, newest=f"step {entered}")


STOPPED = clue(state=ProcessState.STOPPED)
STORAGE = clue(state=ProcessState.WAITING_FOR_STORAGE)

CASES: dict[str, tuple[EvidenceList, int | None, str]] = {
    "a stopped process": ((clue(), STOPPED, clue()), 1, "its process is stopped"),
    "a stopped process that is ahead of the others": (
        (clue(), clue(13, state=ProcessState.STOPPED), clue(9)),
        1,
        "its process is stopped",
    ),
    "a stopped process, and a host that has not told": ((None, STOPPED, clue()), 1, "its process is stopped"),
    "two stopped processes": ((STOPPED, STOPPED, clue()), None, ""),
    "a host that has not told": ((clue(), None, clue(9)), None, ""),
    "nobody has told": ((None, None), None, ""),
    "a world of one host": ((clue(),), 0, "it is the only host of the world, and its process last entered step 12"),
    "one has not entered what others wait in": (
        (clue(), clue(11), clue()),
        1,
        "other hosts have entered step 12, but it has not",
    ),
    "the last one, where others came differently far": (
        (clue(13), clue(12), clue(11)),
        2,
        "other hosts have entered step 13, but it has not",
    ),
    "one has not entered and computes": (
        (clue(), clue(11, COMPUTES)),
        1,
        "other hosts have entered step 12, but it has not",
    ),
    "two have not entered, and one of them does not compute": (
        (clue(11, COMPUTES), clue(), clue(11)),
        2,
        "other hosts have entered step 12, but it has not, and its process is idle",
    ),
    "two have not entered, and one of them computes a little": (
        (clue(11, 0.3), clue(), clue(11)),
        2,
        "other hosts have entered step 12, but it has not, and its process is idle",
    ),
    "two have not entered and neither computes": ((clue(11), clue(), clue(11)), None, ""),
    "two have not entered and both compute": ((clue(11, COMPUTES), clue(), clue(11, COMPUTES)), None, ""),
    "all have entered, one waits for storage": ((clue(), clue(), STORAGE), 2, "its process waits for storage"),
    "all have entered, two wait for storage": ((STORAGE, clue(), STORAGE), None, ""),
    "all have entered, one alone computes": ((clue(), clue(cores=COMPUTES), clue()), 1, "only its process is busy"),
    "all have entered, all others ask again and again": (
        (clue(cores=COMPUTES), clue(cores=COMPUTES), clue()),
        2,
        "only its process is idle",
    ),
    "all have entered, one of two computes: either may wait": ((clue(), clue(cores=COMPUTES)), None, ""),
    "all have entered, two of four compute": (
        (clue(), clue(cores=COMPUTES), clue(), clue(cores=COMPUTES)),
        None,
        "",
    ),
    "all have entered, one computes a little": ((clue(), clue(), clue(cores=0.3)), None, ""),
    "all are alike": ((clue(), clue(), clue()), None, ""),
    "all are alike and busy": ((clue(cores=COMPUTES),) * 3, None, ""),
}


FURTHER = "all other hosts are in a later phase of the startup"
STAGES: dict[str, tuple[EvidenceList, tuple[int, ...], int | None, str]] = {
    "one has come less far": ((clue(), clue(), clue()), (2, 1, 2), 1, FURTHER),
    "the same, and others differ": ((clue(), clue(), clue()), (2, 1, 3), 1, FURTHER),
    "the same, of two": ((clue(0), clue(0)), (1, -1), 1, FURTHER),
    "the same, and a host has not told": ((None, clue(), clue()), (2, 1, 2), 1, FURTHER),
    "the same, and a stopped process": ((STOPPED, clue(), clue()), (2, 1, 2), 0, "its process is stopped"),
    "two have come less far": ((clue(), clue(), clue()), (1, 2, 1), None, ""),
    "all have come as far": ((clue(0), clue(0)), (1, 1), None, ""),
    "a world of one": ((clue(),), (1,), 0, "it is the only host of the world, and its process last entered step 12"),
}


@pytest.mark.parametrize(("clues", "stages", "want", "why"), STAGES.values(), ids=STAGES.keys())
def test_host_with_the_least_startup_progress_is_named(
    clues: EvidenceList, stages: tuple[int, ...], want: int | None, why: str
) -> None:
    suspect = find_blocking_member(clues, stages)

    assert (suspect.index if suspect else None, suspect.why if suspect else "") == (want, why)


@pytest.mark.parametrize(("clues", "want", "why"), CASES.values(), ids=CASES.keys())
def test_find_suspect(clues: EvidenceList, want: int | None, why: str) -> None:
    suspect = find_blocking_member(clues)

    assert (suspect.index if suspect else None, suspect.why if suspect else "") == (want, why)


KINDS = ("stopped", "never entered", "loops before it enters", "storage", "loops inside", "dead device among askers")


def hang(kind: str, seed: int) -> tuple[list[Diagnostics], int]:
    """Return the states of a world's hosts in a hang of a kind, with realistic noise, and the host that hangs."""
    noise = random.Random(seed)  # noqa: S311  # the same noise each time
    num_hosts, step = noise.randint(3, 32), noise.randint(2, 10_000)
    sick = noise.randrange(num_hosts)
    waits = 1.0 if kind == "dead device among askers" else 0.0
    clues = [clue(step, round(waits + noise.uniform(0.0, 0.06), 2)) for _ in range(num_hosts)]
    if kind in ("stopped", "never entered", "loops before it enters"):
        for index in noise.sample(range(num_hosts), noise.randint(0, num_hosts - 1)):
            clues[index] = clues[index].model_copy(update={"entered": step + 1, "newest": f"step {step + 1}"})
        clues[sick - 1] = clues[sick - 1].model_copy(update={"entered": step + 1, "newest": f"step {step + 1}"})
        before = {"entered": step - noise.randint(1, 2), "cores": 1.0 if "loops" in kind else 0.0}
        clues[sick] = clues[sick].model_copy(update=before)
    changes = {
        "stopped": {"state": ProcessState.STOPPED, "entered": step + noise.randint(0, 1)},
        "storage": {"state": ProcessState.WAITING_FOR_STORAGE},
        "loops inside": {"cores": noise.uniform(0.9, 4.0)},
        "dead device among askers": {"cores": noise.uniform(0.0, 0.06)},
    }
    clues[sick] = clues[sick].model_copy(update=changes.get(kind, {}))
    return clues, sick


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_hangs_of_a_kind_are_named_right(kind: str) -> None:
    hangs = [hang(kind, seed) for seed in range(20)]

    right = [suspect.index == sick for clues, sick in hangs if (suspect := find_blocking_member(clues))]

    assert sum(right) >= 19
    assert all(right)


def test_no_host_is_named_if_hosts_are_alike_despite_noise() -> None:
    for seed in range(200):
        noise = random.Random(seed)  # noqa: S311  # the same noise each time
        base = noise.choice((0.0, 1.0))
        clues = [clue(7, base + noise.uniform(0.0, 0.08)) for _ in range(noise.randint(2, 32))]

        assert find_blocking_member(clues) is None
