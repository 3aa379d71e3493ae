"""Real trainer processes in real worlds, spoken to as an agent does."""

import json
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.crew import PATIENCE, Crew, Trainer
from tests.support.trainer.shelf import list_steps, read_record, step_path
from tests.support.trainer.tiny import SIZES, make_config, make_spec, make_world
from trainingjob_agent.stacks import find_stacks
from trainingjob_agent.trainer_protocol import Command
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.world import Layout, RunConfig, Span
from trainingjob_trainer.runtime.agent_events import EXIT_ORPHANED

WHOLE_LIFE = [Phase.PREPARING, Phase.CONNECTING, Phase.RESTORING, Phase.COMPILING, Phase.TRAINING]
FIRST = Span(generation=1, first=1)
MANY = 100_000
"""Steps that no test ends: it kills the world or leaves it."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared/checkpoints"


def make(root: Path, text: Path, layouts: tuple[Layout, ...] = SIZES, **changes: Any) -> RunConfig:
    return make_config(make_spec(root, text, **changes), layouts)


def read_curve(root: Path) -> dict[tuple[int, int], float]:
    lines = (root / "metrics/metrics.jsonl").read_text().splitlines()
    return {(line["generation"], line["step"]): line["loss"] for line in map(json.loads, lines) if "loss" in line}


def undisturbed(crew: Crew, root: Path, text: Path, programs: Path, num_steps: int, **changes: Any) -> dict[int, float]:
    """Train the same job alone and without a fault; return the losses of its first steps."""
    (trainer,) = crew.start(
        make(root.parent / "undisturbed/run", text, training__steps=MANY, **changes), make_world(1, 1), programs
    )
    trainer.wait_for_step(num_steps)
    trainer.kill()
    return {step: loss for step, loss in trainer.losses.items() if step <= num_steps}


@pytest.mark.slow
def test_two_processes_train_to_the_end(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    samples = [{"prompt": "word", "maxTokens": 4}, {"prompt": "w", "maxTokens": 9, "temperature": 0.9, "everySteps": 8}]
    held_out = [{"name": "held", "path": str(text), "everySteps": 4, "numBatches": 2, "samples": samples}]
    config = make(root, text, evaluation=held_out)

    trainers = crew.start(config, make_world(1, 2), programs)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert trainer.phases[: len(WHOLE_LIFE)] == WHOLE_LIFE
        assert trainer.phases[-1] is Phase.DONE
        assert Phase.EVALUATING in trainer.phases
        assert trainer.restored == 0
        assert trainer.committed == [2, 4, 6], trainer.tell_logs()
        assert list(trainer.losses) == [1, 2, 3, 4, 5, 6]
    assert trainers[0].losses == trainers[1].losses
    assert trainers[0].losses[6] < trainers[0].losses[1]
    assert read_curve(root) == {(1, step): loss for step, loss in trainers[0].losses.items()}
    last = [event.progress for event in trainers[1].events if event.progress][-1]
    assert last.evaluations["held"] == pytest.approx(trainers[1].losses[6], abs=1.0)
    texts = [json.loads(line) for line in (root / "metrics/samples.jsonl").read_text().splitlines()]
    assert [(one["step"], one["prompt"]) for one in texts] == [(4, "word"), (6, "word"), (6, "w")]
    assert all("sampled step=6 evaluation=held prompt='w' text=" in trainer.log for trainer in trainers)
    assert list_steps(root / "lineage-0") == ["2", "4", "6"]
    assert list(root.glob("programs/*")) == []


@pytest.mark.slow
def test_processes_enter_the_same_phases_in_order_and_report_them(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text, training__steps=MANY, checkpoint__save__everySteps=MANY)
    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        trainer.wait_for_step(3)

    trainers[1].process.send_signal(signal.SIGSTOP)
    wait_for(lambda: "in train\n" in ask_for_stacks(trainers[0]))
    trainers[1].process.send_signal(signal.SIGCONT)
    trainers[0].wait_for_step(max(trainers[0].losses) + 3)

    first, second = ([event.entered for event in trainer.events if event.entered] for trainer in trainers)
    assert first[: len(second)] == second[: len(first)]
    assert first[first.index("the barrier `ready`") + 1 :][:3] == ["step 1", "step 2", "step 3"]


def ask_for_stacks(trainer: Trainer) -> str:
    """Return the dumps so far, and request one more: a line of the log may be in the middle of one."""
    trainer.process.send_signal(signal.SIGUSR1)
    return find_stacks(trainer.log)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_history(root: Path, *lasts: int) -> dict[int, float]:
    """Return the losses by step of generations 1, 2 and so on, each up to its last step that counts."""
    curve = read_curve(root)
    firsts = (1, *(last + 1 for last in lasts))
    spans = [range(first, last + 1) for first, last in zip(firsts, lasts, strict=False)]
    return {step: curve[generation, step] for generation, span in enumerate(spans, 1) for step in span}


@pytest.mark.slow
def test_a_killed_world_is_followed_on_fewer_and_then_on_more_processes(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text, training__steps=MANY)
    both = crew.start(config, make_world(1, 2), programs)
    crew.prepare(1)
    both[0].wait(lambda event: event.committed == 4)
    for trainer in both:
        trainer.kill()

    (one,) = crew.start(config, make_world(2, 1, (FIRST,)), programs)
    crew.prepare(2)
    one.wait(lambda event: event.restored is not None)
    shrunk_at = one.restored
    assert shrunk_at is not None
    assert shrunk_at >= 4
    one.wait(lambda event: event.committed is not None and event.committed >= shrunk_at + 4)
    one.write(Command(leave=True))
    assert one.wait_for_end() == 0, one.tell_logs()
    assert one.phases[-1] is Phase.LEFT
    grown_at = one.committed[-1]
    assert grown_at == max(one.losses)

    history = (
        Span(generation=1, first=1, last=shrunk_at),
        Span(generation=2, first=shrunk_at + 1),
    )
    grown = crew.start(config, make_world(3, 2, history), programs)
    grown[0].wait_for_step(grown_at + 5)  # the line of a step is on disk before the next step is told
    assert [trainer.restored for trainer in grown if trainer.restored is not None] == [grown_at]
    for trainer in grown:
        trainer.kill()

    want = undisturbed(crew, root, text, programs, grown_at + 4)
    assert read_history(root, shrunk_at, grown_at, grown_at + 4) == pytest.approx(want, abs=1e-3)


@pytest.mark.slow
def test_an_end_that_was_brought_forward_to_a_snapshot_is_saved(
    crew: Crew, root: Path, text: Path, programs: Path, tmp_path: Path
) -> None:
    saves = {"checkpoint__save__everySteps": MANY, "checkpoint__snapshots": {"everySteps": 3}}
    (first,) = crew.start(make(root, text, training__steps=MANY, **saves), make_world(1, 1), programs, tmp_path / "m")
    first.wait_for_step(8)
    first.kill()

    config = make(root, text, training__steps=2, **saves)
    (again,) = crew.start(config, make_world(2, 1, (FIRST,)), programs, tmp_path / "m")

    assert again.wait_for_end() == 0, again.tell_logs()
    assert (again.tier, again.losses, again.phases[-1]) == ("ram", {}, Phase.DONE)
    assert again.committed == [again.restored]


@pytest.mark.slow
def test_whole_world_drains_when_one_process_gets_the_request(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text, training__steps=MANY, checkpoint__save__everySteps=MANY)
    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        trainer.wait_for_step(2)

    trainers[1].process.send_signal(signal.SIGTERM)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert trainer.phases[-1] is Phase.LEFT
    assert trainers[0].committed == trainers[1].committed == [max(trainers[0].losses)]


@pytest.mark.slow
def test_processes_save_by_time_at_the_same_steps(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    saves = {"checkpoint__save__everySteps": MANY, "checkpoint__save__every": "1s"}
    trainers = crew.start(make(root, text, training__steps=MANY, **saves), make_world(1, 2), programs)

    for trainer in trainers:
        for _ in range(2):
            trainer.wait(lambda event: event.committed is not None)

    assert trainers[0].committed[:2] == trainers[1].committed[:2]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "size"), [(0, 1), (1, 0)], ids=["the first, no folder", "another, no array"])
def test_a_store_that_one_host_cannot_write_stops_nothing_and_is_used_again_when_it_can(
    number: int, size: int, crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text, training__steps=MANY, checkpoint__keep__last=1000)
    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        trainer.wait(lambda event: event.committed is not None)

    _, most = resource.prlimit(trainers[number].process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(trainers[number].process.pid, resource.RLIMIT_FSIZE, (size, most))
    failures = [event.failed_save for trainer in trainers if (event := trainer.wait(lambda event: event.failed_save))]
    for trainer, failure in zip(trainers, failures, strict=True):
        assert failure
        assert failure.message.startswith(f"host 0 of slice {number}: ")
        trainer.wait_for_step(failure.step + 5)
    resource.prlimit(trainers[number].process.pid, resource.RLIMIT_FSIZE, (most, most))
    for trainer in trainers:
        trainer.wait(lambda event: event.committed is not None)

    assert trainers[0].committed[-1] in trainers[1].committed
    assert read_record(step_path(root, trainers[0].committed[-1]))


@pytest.mark.slow
def test_a_damaged_step_is_reported_and_the_one_before_it_restored(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text)
    (first,) = crew.start(config, make_world(1, 1), programs)
    crew.prepare(2)
    assert first.wait_for_end() == 0, first.tell_logs()
    largest = max((path for path in step_path(root, 6).rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 4
    largest.write_bytes(content)

    trainers = crew.start(config, make_world(2, 2, (FIRST,)), programs)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert trainer.restored == 4
        assert trainer.committed == [6]
    (damage,) = trainers[0].damaged
    assert damage.step == 6
    assert "has changed since it was saved" in damage.message
    assert trainers[0].losses == pytest.approx({step: first.losses[step] for step in (5, 6)}, abs=1e-3)


@pytest.mark.slow
def test_a_finished_job_that_is_started_again_is_done_at_once(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text)
    (first,) = crew.start(config, make_world(1, 1), programs)
    crew.prepare(1)
    assert first.wait_for_end() == 0, first.tell_logs()

    for steps in (6, 4):  # 4: an edit came too late
        config = make(root, text, training__steps=steps)
        (again,) = crew.start(config, make_world(2, 1, (FIRST,)), programs)

        assert again.wait_for_end() == 0, again.tell_logs()
        assert (again.restored, again.losses, again.phases[-1]) == (6, {}, Phase.DONE)


@pytest.mark.slow
def test_losses_that_stay_infinite_fail_the_world_at_the_same_step(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(
        root, text, training__steps=MANY, optimizer={"learningRate": 10.0, "clipNorm": 0, "weightDecay": {"rate": 10}}
    )

    (trainer,) = crew.start(config, make_world(1, 1))

    assert trainer.wait_for_end() == 1
    assert trainer.failure is not None
    assert (trainer.failure.reason, trainer.failure.fatal) == (FailureReason.NON_FINITE, False)
    assert trainer.failure.path == "spec.optimizer.learningRate"
    assert trainer.failure.step is not None


@pytest.mark.slow
def test_job_with_policy_stop_fails_permanently_at_the_first_loss_that_is_not_finite(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    changes = {
        "optimizer": {"learningRate": 10.0, "clipNorm": 0, "weightDecay": {"rate": 10}},
        "protection__nonFinite": "stop",
    }
    config = make(root, text, training__steps=MANY, **changes)

    (trainer,) = crew.start(config, make_world(1, 1))

    assert trainer.wait_for_end() == 1
    assert trainer.failure is not None
    assert (trainer.failure.reason, trainer.failure.fatal) == (FailureReason.NON_FINITE, True)
    assert trainer.failure.step == max(event.progress.step for event in trainer.events if event.progress)


def fail(crew: Crew, config: RunConfig) -> Trainer:
    (trainer,) = crew.start(config, make_world(1, 1))
    assert trainer.wait_for_end() == 1
    return trainer


@pytest.mark.thorough
def test_untrainable_job_fails_at_once_with_a_message(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    crew.prepare(3)
    (text / "part-0.txt").write_bytes(b"text \xff")
    bad_text = fail(crew, make(root, text)).failure
    assert bad_text is not None
    assert (bad_text.reason, bad_text.fatal, bad_text.path) == (FailureReason.DATA, True, "spec.data.train[0].path")
    assert "part-0.txt is not UTF-8 text: byte 5" in bad_text.message

    small_vocabulary = fail(crew, make(root, text, model__vocabSize=100)).failure
    assert small_vocabulary is not None
    assert (small_vocabulary.path, small_vocabulary.value) == ("spec.model.vocabSize", "100")

    foreign = fail(crew, make_config(make_spec(root, text), uid="other")).failure
    assert foreign is not None
    assert (foreign.reason, foreign.fatal, foreign.path) == (FailureReason.CONFIG, True, "spec.checkpoint.uri")
    assert "holds the checkpoints of tests/tiny" in foreign.message


@pytest.mark.thorough
def test_a_folder_that_cannot_be_written_is_a_storage_failure(crew: Crew, tmp_path: Path, text: Path) -> None:
    (tmp_path / "file").touch()

    failure = fail(crew, make(tmp_path / "file/checkpoints", text)).failure

    assert failure is not None
    assert (failure.reason, failure.fatal, failure.path) == (FailureReason.STORAGE, True, "spec.checkpoint.uri")
    assert "Not a directory" in failure.message


@pytest.mark.slow
def test_trainer_without_its_agent_ends(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    config = make(root, text, training__steps=MANY)
    (trainer,) = crew.start(config, make_world(1, 1), programs)
    trainer.wait_for_step(1)

    trainer.process.stdin.close()

    assert trainer.wait_for_end() == EXIT_ORPHANED
    assert trainer.failure is None


def test_standby_without_its_agent_ends_quietly(crew: Crew) -> None:
    crew.prepare(1)
    (standby,) = crew.standbys
    standby.wait(lambda event: event.ready)
    assert standby.title == "standby"

    standby.process.stdin.close()

    assert standby.wait_for_end() == 0
    assert standby.phases == []
