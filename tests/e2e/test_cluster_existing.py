"""A cluster of somebody else: what must be known of it before a journey begins."""

import pytest

from e2e.cluster.commands import ClusterError
from e2e.cluster.existing import ExistingCluster
from e2e.product import Product

OPERATOR, TRAINER = "registry.example:5000/ml/operator:1.2", "registry.example:5000/ml/trainer:1.3"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ExistingCluster:
    monkeypatch.setenv("E2E_OPERATOR_IMAGE", OPERATOR)
    monkeypatch.setenv("E2E_TRAINER_IMAGE", TRAINER)
    found = ExistingCluster()
    monkeypatch.setattr(found, "kubectl", lambda *words: "")
    return found


def test_one_whose_images_are_named_is_taken_as_it_is(cluster: ExistingCluster) -> None:
    cluster.up()


def test_images_that_are_not_named_or_have_no_tag_are_told_together(
    cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("E2E_OPERATOR_IMAGE")
    monkeypatch.setenv("E2E_TRAINER_IMAGE", "registry.example:5000/ml/trainer")

    with pytest.raises(ClusterError) as refused:
        ExistingCluster().up()

    told, _, advice = str(refused.value).partition(": must be the NAME:TAG of an image")
    assert told == "E2E_OPERATOR_IMAGE= and E2E_TRAINER_IMAGE=registry.example:5000/ml/trainer"
    assert advice


def test_its_images_are_what_the_chart_installs(cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(cluster, "helm", lambda *words: calls.append(words) or "")

    Product(cluster).install()

    (words,) = calls
    assert {word for word in words if "mage." in word and "pullPolicy" not in word} == {
        "image.repository=registry.example:5000/ml/operator",
        "image.tag=1.2",
        "trainer.image.repository=registry.example:5000/ml/trainer",
        "trainer.image.tag=1.3",
    }
