"""An existing cluster: its requirements before a journey begins."""

from pathlib import Path

import pytest

from e2e.cluster.existing import ExistingCluster
from e2e.cluster.run_program import ClusterError
from e2e.product import Product

OPERATOR, TRAINER = "registry.example:5000/ml/operator:1.2", "registry.example:5000/ml/trainer:1.3"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ExistingCluster:
    monkeypatch.setenv("E2E_OPERATOR_IMAGE", OPERATOR)
    monkeypatch.setenv("E2E_TRAINER_IMAGE", TRAINER)
    found = ExistingCluster()
    monkeypatch.setattr(found, "kubectl", lambda *words: '{"items": []}')
    return found


def test_cluster_with_named_images_is_used_unchanged(cluster: ExistingCluster) -> None:
    cluster.up()


def test_missing_images_and_tags_are_reported_together(
    cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("E2E_OPERATOR_IMAGE")
    monkeypatch.setenv("E2E_TRAINER_IMAGE", "registry.example:5000/ml/trainer")

    with pytest.raises(ClusterError) as refused:
        ExistingCluster().up()

    reported, _, advice = str(refused.value).partition(": must be the NAME:TAG of an image")
    assert reported == "E2E_OPERATOR_IMAGE= and E2E_TRAINER_IMAGE=registry.example:5000/ml/trainer"
    assert advice


def test_its_images_are_what_the_chart_installs(cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {word for word in install(cluster, monkeypatch) if "mage." in word and "pullPolicy" not in word} == {
        "image.repository=registry.example:5000/ml/operator",
        "image.tag=1.2",
        "trainer.image.repository=registry.example:5000/ml/trainer",
        "trainer.image.tag=1.3",
    }


def test_an_operator_of_other_sources_makes_way_though_the_tag_is_the_same(
    cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("e2e.cluster.images.SOURCES", ("operator",))
    monkeypatch.setattr("e2e.cluster.images.CHECKOUT", tmp_path)
    for name in ("operator", "trainer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Containerfile").touch()
        (tmp_path / name / "requirements.lock").touch()
    first, same = (install(cluster, monkeypatch) for _ in range(2))
    (tmp_path / "operator/main.py").touch()
    changed = install(cluster, monkeypatch)

    assert first == same
    (key,) = set(changed) - set(first)
    assert key.startswith("podAnnotations.sources=")


def install(cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return the arguments of Helm."""
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(cluster, "helm", lambda *words: calls.append(words) or "")
    Product(cluster).install()
    (words,) = calls
    return words
