"""Hyperparameters of the optimizer's type: which defaults apply, and which object may be set."""

import pytest

from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.spec.optimizer import AdamW, Lion, Muon, Optimizer, Sgd

RESOLVED: dict[str, tuple[Optimizer, AdamW | Lion | Muon | Sgd]] = {
    "adamw": (Optimizer(learning_rate=1), AdamW(beta1=0.9, beta2=0.95, epsilon=1e-8)),
    "adamw with values": (Optimizer(learning_rate=1, adamw=AdamW(beta1=0.5)), AdamW(beta1=0.5)),
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
def test_the_defaults_are_those_of_the_type(optimizer: Optimizer, want: AdamW | Lion | Muon | Sgd) -> None:
    assert optimizer.resolved() == want


def test_api_server_rejects_the_object_of_another_type() -> None:
    rules = {rule["fieldPath"]: rule["rule"] for rule in SPEC_RULES["optimizer",] if "fieldPath" in rule}

    assert rules == {
        ".adamw": "!has(self.adamw) || self.type == 'adamw'",
        ".lion": "!has(self.lion) || self.type == 'lion'",
        ".muon": "!has(self.muon) || self.type == 'muon'",
        ".sgd": "!has(self.sgd) || self.type == 'sgd'",
    }
