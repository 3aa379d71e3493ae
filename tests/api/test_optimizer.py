"""Hyperparameters of the optimizer's type: which defaults apply, and which object may be set."""

from typing import Any

import pytest

from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.optim import find_rate_scale
from trainingjob_api.spec.optimizer import Adafactor, AdamW, LearningRate, Lion, Muon, Optimizer, Sgd

RESOLVED: dict[str, tuple[Optimizer, AdamW | Adafactor | Lion | Muon | Sgd]] = {
    "adamw": (Optimizer(learning_rate=1), AdamW(beta1=0.9, beta2=0.95, epsilon=1e-8)),
    "adamw with values": (Optimizer(learning_rate=1, adamw=AdamW(beta1=0.5)), AdamW(beta1=0.5)),
    "adafactor": (
        Optimizer(learning_rate=1, type="adafactor"),
        Adafactor(decay_rate=0.8, min_factored_size=128, scale_by_parameters=True),
    ),
    "adafactor with values": (
        Optimizer(learning_rate=1, type="adafactor", adafactor=Adafactor(min_factored_size=8)),
        Adafactor(min_factored_size=8),
    ),
    "lion": (Optimizer(learning_rate=1, type="lion"), Lion(beta1=0.9, beta2=0.99)),
    "lion with values": (Optimizer(learning_rate=1, type="lion", lion=Lion(beta2=0.9)), Lion(beta2=0.9)),
    "muon": (
        Optimizer(learning_rate=1, type="muon"),
        Muon(momentum=0.95, newton_schulz_steps=5, rms_scale=None, adamw=AdamW()),
    ),
    "muon with values": (Optimizer(learning_rate=1, type="muon", muon=Muon(rms_scale=0.2)), Muon(rms_scale=0.2)),
    "sgd": (Optimizer(learning_rate=1, type="sgd"), Sgd(momentum=None, nesterov=False)),
    "sgd with values": (Optimizer(learning_rate=1, type="sgd", sgd=Sgd(momentum=0.9)), Sgd(momentum=0.9)),
}


@pytest.mark.parametrize(("optimizer", "want"), RESOLVED.values(), ids=RESOLVED.keys())
def test_the_defaults_are_those_of_the_type(optimizer: Optimizer, want: AdamW | Adafactor | Lion | Muon | Sgd) -> None:
    assert optimizer.resolved() == want


@pytest.mark.parametrize(
    ("kind", "given", "want"), [("adafactor", None, 1), ("adafactor", 2, 2), ("adamw", None, None)]
)
def test_adafactor_limits_updates_unless_the_spec_has_another_limit(
    kind: Any, given: float | None, want: float | None
) -> None:
    assert Optimizer(learning_rate=1, type=kind, clip_update_rms=given).update_rms_limit == want


def test_api_server_rejects_the_object_of_another_type() -> None:
    rules = {rule["fieldPath"]: rule["rule"] for rule in SPEC_RULES["optimizer",] if "fieldPath" in rule}

    assert rules == {
        ".adamw": "!has(self.adamw) || self.type == 'adamw'",
        ".adafactor": "!has(self.adafactor) || self.type == 'adafactor'",
        ".lion": "!has(self.lion) || self.type == 'lion'",
        ".muon": "!has(self.muon) || self.type == 'muon'",
        ".sgd": "!has(self.sgd) || self.type == 'sgd'",
    }


@pytest.mark.parametrize(("name", "want"), [("embedding", 0.1), ("layers.mlp.up", 2.0), ("head", 1.0)])
def test_the_first_item_that_names_a_tensor_scales_its_learning_rate(name: str, want: float) -> None:
    rates = (LearningRate(tensors=("embedding",), scale=0.1), LearningRate(tensors=("*.mlp.*", "embedding"), scale=2))

    assert find_rate_scale(Optimizer(learning_rate=1, learning_rates=rates), name) == want
