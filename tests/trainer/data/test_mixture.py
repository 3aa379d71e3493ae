"""Mixtures: each source has its share of the samples, and each of its sequences comes once an epoch."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trainer.texts import fail, grow, index_of
from tests.support.trainer.training import ONE, Run, losses, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.training import BatchSizes
from trainingjob_trainer.data.mixture import PERIOD, Mixture, Phase, make_pattern
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sampler import ExcludedSamples, count_samples
from trainingjob_trainer.data.token_dataset import TokenDataset


def make_dataset(num_sequences: int, first_token: int = 0) -> TokenDataset:
    tokens = np.arange(first_token, first_token + num_sequences * 2 + 1, dtype=np.uint32)
    return TokenDataset(f"{num_sequences} from {first_token}", tokens, 2)


def mix(sizes: list[int], *phases: Phase, temperature: float = 1.0) -> Mixture:
    names = tuple(f"source-{place}" for place in range(len(sizes)))
    datasets = tuple(make_dataset(size, 1000 * place) for place, size in enumerate(sizes))
    return Mixture(names, datasets, phases, temperature)


def sources_of(mixture: Mixture, numbers: np.ndarray) -> list[int]:
    ends = np.cumsum([one.num_sequences for one in mixture.datasets])
    return np.searchsorted(ends, numbers, side="right").tolist()


SHARES: dict[str, tuple[tuple[float, ...], float, list[float]]] = {
    "one source": ((5.0,), 1.0, [1.0]),
    "weights": ((3.0, 1.0), 1.0, [0.75, 0.25]),
    "a source that is not read": ((1.0, 0.0, 1.0), 1.0, [0.5, 0.0, 0.5]),
    "a temperature above 1 flattens": ((9.0, 1.0), 2.0, [0.75, 0.25]),
    "a temperature below 1 sharpens": ((2.0, 1.0), 0.5, [0.8, 0.2]),
    "thirds": ((1.0, 1.0, 1.0), 1.0, [1 / 3] * 3),
}


@pytest.mark.parametrize(("weights", "temperature", "want"), SHARES.values(), ids=SHARES)
def test_a_pattern_has_the_share_of_each_source(
    weights: tuple[float, ...], temperature: float, want: list[float]
) -> None:
    pattern = make_pattern(weights, temperature)

    assert pattern.counts.tolist() == pytest.approx([share * PERIOD for share in want], abs=1)
    assert int(pattern.counts.sum()) == PERIOD
    assert np.bincount(pattern.sources, minlength=len(weights)).tolist() == pattern.counts.tolist()


def test_a_source_with_a_tiny_weight_is_read_once_a_period() -> None:
    assert make_pattern((1.0, 1e-9, 1e-9)).counts.tolist() == [PERIOD - 2, 1, 1]


def test_no_weight_is_rejected() -> None:
    with pytest.raises(ValueError, match="weight above 0"):
        make_pattern((0.0, 0.0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.integers(0, 3 * PERIOD))
def test_each_run_of_samples_has_its_share(weights: list[float], num_samples: int) -> None:
    pattern = make_pattern(tuple(weights))

    exact = num_samples * pattern.counts / PERIOD
    assert np.abs(pattern.count_first(num_samples) - exact).max() <= len(weights) / 2 + 1
    assert int(pattern.count_first(num_samples).sum()) == num_samples


HISTORIES: dict[str, tuple[BatchSizes, ExcludedSamples]] = {
    "one batch size": (((1, 7),), ()),
    "a larger batch later": (((1, 4), (9, 10)), ()),
    "excluded samples around a phase": (((1, 7),), ((60, 75),)),
    "excluded samples from the beginning": (((1, 7),), ((0, 21),)),
}


@pytest.mark.parametrize(("sizes", "skipped"), HISTORIES.values(), ids=HISTORIES)
def test_each_sequence_comes_once_an_epoch_in_all_phases(sizes: BatchSizes, skipped: ExcludedSamples) -> None:
    mixture = mix([30, 20, 10], Phase(1, (3, 1, 0)), Phase(10, (1, 1, 1)), Phase(20, (0, 0, 1)))

    history = SampleHistory(sizes, skipped)
    steps = [mixture.choose_sequences(history.samples(step), 3, history) for step in range(1, 40)]
    left_out = [mixture.choose_sequences(np.arange(*gap), 3, history) for gap in skipped]

    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number in np.concatenate([*steps, *left_out]).tolist():
        seen[sources_of(mixture, np.array([number]))[0]].append(number)
    for place, numbers in seen.items():
        times = Counter(numbers)
        all_times = [times[number] for number in range(sum([30, 20, 10][:place]), sum([30, 20, 10][: place + 1]))]
        assert max(all_times) - min(all_times) <= 1, f"source {place} has a sequence twice before another one once"
    shares = [Counter(sources_of(mixture, numbers)) for numbers in steps]
    assert all(not one[2] for one in shares[:9])
    assert all(list(one) == [2] for one in shares[19:])
    total = count_samples(39, sizes) + sum(end - first for first, end in skipped)
    by_source = mixture.count_by_source(total, history)
    assert list(by_source.values()) == [len(numbers) for numbers in seen.values()]


def test_a_step_has_no_memory() -> None:
    mixture = mix([300, 200], Phase(1, (0.7, 0.3)), Phase(1000, (0.1, 0.9)))
    history = SampleHistory(((1, 64),))

    def choose(step: int) -> list[int]:
        return mixture.choose_sequences(history.samples(step), 0, history).tolist()

    all_at_once = mixture.choose_sequences(np.arange(64 * 1010), 0, history)
    assert [choose(step) for step in (1, 999, 1000, 1010)] == [
        all_at_once[64 * (step - 1) : 64 * step].tolist() for step in (1, 999, 1000, 1010)
    ]
    assert len(choose(10**9)) == 64


def test_sequences_come_from_their_datasets_in_the_wanted_order() -> None:
    mixture = mix([3, 4], Phase(1, (1, 1)))

    sequences = mixture.sequences(np.array([5, 0, 2, 6]))

    assert sequences.tokens.tolist() == [[1004, 1005], [0, 1], [4, 5], [1006, 1007]]
    assert sequences.segment_ids is None


@pytest.mark.parametrize(
    "change",
    [
        {"phases": (Phase(1, (1.0, 2.0)),)},
        {"phases": (Phase(1, (1.0, 1.0)), Phase(5, (1.0, 2.0)))},
        {"temperature": 2.0},
        {"names": ("other", "source-1")},
        {"datasets": (make_dataset(3), make_dataset(3))},
    ],
    ids=["weights", "phases", "temperature", "names", "datasets"],
)
def test_the_identity_covers_all_that_decides_the_order(change: dict[str, Any]) -> None:
    plain = mix([3, 4], Phase(1, (1.0, 1.0)))
    values = {name: getattr(plain, name) for name in ("names", "datasets", "phases", "temperature")}

    assert Mixture(**(values | change)).dataset_hash != plain.dataset_hash


def prepare(tmp_path: Path, data: dict[str, Any], **changes: Any) -> Any:
    grow(tmp_path / "web", **{"a.txt": "a" * 400})
    grow(tmp_path / "chat", **{"b.txt": "b" * 40})
    sources = [{"name": name, "path": str(tmp_path / name)} for name in ("web", "chat")]
    for source, weight in zip(sources, data.pop("weights", ()), strict=False):
        source |= {"weight": weight}
    return index_of(tmp_path, data={"train": sources} | data, training__sequenceLength=4, **changes)


def test_weighted_sources_are_datasets_of_their_own(tmp_path: Path) -> None:
    found = prepare(
        tmp_path, {"weights": (1, 3)}, evaluation=[{"name": "web", "path": str(tmp_path / "web"), "everySteps": 5}]
    )

    assert found.train.names == ("web", "chat")
    assert [one.num_sequences for one in found.train.datasets] == [100, 10]
    assert found.evaluations["web"].num_sequences == 100
    assert [(one.name, one.rows, one.epochs, one.evaluation) for one in found.report.sources] == [
        ("web", 100, 0.06, False),
        ("chat", 10, 1.8, False),
        ("web", 100, None, True),
    ]
    assert (found.report.rows, found.report.tokens) == (110, 442)
    again = prepare(
        tmp_path, {"weights": (1, 3)}, evaluation=[{"name": "web", "path": str(tmp_path / "web"), "everySteps": 5}]
    )
    assert (again.train.dataset_hash, again.report) == (found.train.dataset_hash, found.report)


def test_without_weights_the_sizes_count(tmp_path: Path) -> None:
    phase = {"fromStep": 4, "weights": {"chat": 1}}

    train = prepare(tmp_path, {"weightSchedule": [phase], "temperature": 2}).train

    assert train.phases == (Phase(1, (100.0, 10.0)), Phase(4, (0.0, 1.0)))
    assert train.temperature == 2.0


def test_a_source_that_is_repeated_often_is_reported(tmp_path: Path) -> None:
    warnings = prepare(tmp_path, {"weights": (1, 9)}, training__steps=60).report.warnings

    assert "source chat: 21.6 epochs over 60 steps. Add text, or lower its weight." in warnings


def test_a_weighted_source_without_a_sequence_is_rejected(tmp_path: Path) -> None:
    grow(tmp_path / "chat", **{"b.txt": "b"})

    error = fail(
        lambda: index_of(
            tmp_path,
            data={"train": [{"name": "chat", "path": str(tmp_path / "chat"), "weight": 1}]},
            training__sequenceLength=4,
        )
    )

    assert error.path == "spec.data.train[0].path"


@pytest.mark.thorough
def test_a_mixture_trains_alike_on_each_mesh() -> None:
    spec = spec_with()
    mixture = Mixture(
        ("even", "odd"), tuple(Run(spec, ONE).index for _ in range(2)), (Phase(1, (0.7, 0.3)), Phase(4, (0.0, 1.0)))
    )

    def train(layout: Any) -> list[float]:
        run = Run(spec, layout)
        run.index = mixture
        return [float(one.loss) for one in run.train()]

    found = train(ONE)
    assert train(LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"]) == pytest.approx(found, abs=1e-4)
    assert found != pytest.approx(losses(spec, ONE), abs=1e-4)


def test_epochs_count_the_source_that_is_complete_first(tmp_path: Path) -> None:
    report = prepare(tmp_path, {"weights": (1, 1)}, training__steps=None, training__epochs=2).report

    assert [(one.name, one.epochs) for one in report.sources] == [("web", 0.2), ("chat", 2.0)]
    assert (
        "source web: 0.20 epochs, because spec.training.epochs counts those of chat, which is read completely first "
        "(2.00). Raise its weight, or set spec.training.steps." in report.warnings
    )


def test_epochs_of_sources_in_proportion_to_their_size_warn_of_nothing(tmp_path: Path) -> None:
    report = prepare(tmp_path, {"weights": (10, 1)}, training__steps=None, training__epochs=9).report

    assert [one.epochs for one in report.sources] == pytest.approx([9.0, 9.0], abs=0.3)
    assert report.warnings == ()


def test_sources_without_shuffling_come_in_the_order_of_their_text(tmp_path: Path) -> None:
    shuffled = prepare(tmp_path, {"weights": (1, 1)}).train
    ordered = prepare(tmp_path, {"weights": (1, 1), "shuffle": False}).train

    numbers = ordered.choose_sequences(np.arange(24), 3, SampleHistory(((1, 4),))).tolist()

    assert [number for number in numbers if number < 100] == list(range(12))
    assert [number - 100 for number in numbers if number >= 100] == [*range(10), 0, 1]
    assert ordered.dataset_hash != shuffled.dataset_hash
    assert [one.folder for one in ordered.datasets] == [one.folder for one in shuffled.datasets]
