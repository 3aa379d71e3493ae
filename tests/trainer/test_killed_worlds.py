"""Worlds that are killed at any step: the next worlds resume without any difference."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.meshes import MODELS
from tests.support.trainer.tiny import GROWING_BATCH, make_world
from tests.trainer.test_main import FIRST, MANY, make, read_curve, read_history, undisturbed
from trainingjob_agent.trainer_protocol import Command
from trainingjob_api.protocol import Phase
from trainingjob_api.world import RunConfig, Span
from trainingjob_trainer.snapshots.snapshot_files import NUM_SLOTS, Slot


def drop_lines(root: Path, first: int) -> None:
    """Remove the metrics lines of a step and of all later ones."""
    path = root / "metrics/metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] < first))


def kill_worlds(crew: Crew, config: RunConfig, programs: Path, num_kills: int) -> list[Span]:
    """Kill worlds one after another at random steps, also before their first save; return the steps that count."""
    moments = Random(5)  # noqa: S311  # moments, not secrets
    spans: list[Span] = []
    for generation in range(1, num_kills + 1):
        (trainer,) = crew.start(config, make_world(generation, 1, tuple(spans)), programs)
        if generation < num_kills:
            crew.prepare(1)
        restored = trainer.wait(lambda event: event.restored is not None).restored or 0
        spans = [span.model_copy(update={"last": min(span.last or restored, restored)}) for span in spans]
        spans = [span for span in spans if span.last and span.last >= span.first]
        spans.append(Span(generation=generation, first=restored + 1))
        trainer.wait_for_step(restored + moments.randint(2, 9))
        trainer.kill()
    end = max(trainer.losses) - 1  # the last one is reported before its line is written
    return [*spans[:-1], spans[-1].model_copy(update={"last": end})]


ADAPTERS: dict[str, Any] = {
    "lora": {
        "rank": 2,
        "alpha": 4,
        "targets": ["*.attention.*", "*.mlp.*"],
        "dropout": 0.2,
        "baseQuantization": "int8",
    }
}
KILLED: dict[str, tuple[int, dict[str, Any]]] = {
    "one batch size": (10, {}),
    "batches that grow": (3, GROWING_BATCH),
    "adapters of an int8 base": (3, ADAPTERS),
}


@pytest.mark.slow
@pytest.mark.parametrize(("num_kills", "changes"), KILLED.values(), ids=KILLED)
def test_world_killed_at_any_step_resumes_to_the_same_bits(
    crew: Crew, tmp_path: Path, text: Path, programs: Path, num_kills: int, changes: dict[str, Any]
) -> None:
    root = tmp_path / "shared/checkpoints"
    spans = kill_worlds(crew, make(root, text, training__steps=MANY, **changes), programs, num_kills)

    curve = read_curve(root)
    trained = {step: curve[span.generation, step] for span in spans for step in range(span.first, (span.last or 0) + 1)}
    assert len(spans) > 2
    assert trained == undisturbed(crew, root, text, programs, max(trained), **changes)


TRAINED: dict[str, dict[str, Any]] = {
    "all parameters": {},
    "adapters of an int8 base": ADAPTERS,
    "a Gemma with dropout": {"model": MODELS["windows"] | {"dropout": {"residual": 0.2, "embedding": 0.2}}},
    "a DeepSeek": {"model": MODELS["latent"]},
    "batches that grow": GROWING_BATCH,
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", TRAINED.values(), ids=TRAINED)
def test_world_resumes_from_snapshots_and_sends_them_to_a_new_host(
    crew: Crew, tmp_path: Path, text: Path, programs: Path, changes: dict[str, Any]
) -> None:
    root = tmp_path / "shared/checkpoints"
    saves = {"checkpoint__save__everySteps": MANY, "checkpoint__snapshots": {"everySteps": 3}}
    config = make(root, text, training__steps=MANY, **saves, **changes)
    memory = tmp_path / "memory"
    both = crew.start(config, make_world(1, 2), programs, memory)
    crew.prepare(1)
    for trainer in both:
        trainer.wait_for_step(8)
    for trainer in both:
        trainer.kill()
    killed_at = max(max(trainer.losses) for trainer in both)
    shutil.rmtree(memory / "pod-1")  # that host does not return
    newest = max(header.step for number in range(NUM_SLOTS) if (header := Slot(memory / "pod-0", number).read_header()))
    drop_lines(root, newest - 1)  # as if process 0 had been lost before it wrote them

    (one,) = crew.start(config, make_world(2, 1, (FIRST,)), programs, memory)
    crew.prepare(2)
    one.wait(lambda event: event.restored is not None)
    shrunk_at = one.restored
    assert shrunk_at is not None
    assert (one.tier, shrunk_at) == ("ram", newest)
    assert 6 <= shrunk_at <= killed_at + 1
    one.wait_for_step(shrunk_at + 4)
    one.write(Command(move=True))
    assert one.wait_for_end() == 0, one.tell_logs()
    assert (one.phases[-1], one.committed) == (Phase.LEFT, [])
    grown_at = max(one.losses)

    history = (Span(generation=1, first=1, last=shrunk_at), Span(generation=2, first=shrunk_at + 1, tier="ram"))
    grown = crew.start(config, make_world(3, 2, history), programs, memory)
    for trainer in grown:  # neither makes a step without the other
        trainer.wait_for_step(grown_at + 5)
        assert (trainer.restored, trainer.tier) == (grown_at, "ram")
    for trainer in grown:
        trainer.kill()

    want = undisturbed(crew, root, text, programs, grown_at + 4, **changes)
    assert read_history(root, shrunk_at, grown_at, grown_at + 4) == pytest.approx(want, abs=1e-3)
    lines = [json.loads(line) for line in (root / "metrics/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["generation"] == 1] == list(range(1, newest + 1))
