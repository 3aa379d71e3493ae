"""No number or text of the spec means "off", with one exception: presence of an object does."""

import re

from trainingjob_api.base import AXES
from trainingjob_api.schema import spec_schema

type Node = dict[str, object]

_NOTHING = r"(?<![\w.%])(0|-1|zero|empty|\"\")(?![\w%]|\.\d)"
_SWITCHES = r"\b(disable|off|none|never|no limit|unlimited|turn|switch|infer)"
OFF = re.compile(rf"{_NOTHING}[^.]*{_SWITCHES}|\b(disable|off|unlimited)\w*\b[^.]*{_NOTHING}", re.IGNORECASE)
ZERO_IS_A_VALUE = {
    "model.experts.balance.lossWeight": "a weight",
    "model.mlp.linearOffset": "a constant in a sum",
    "model.experts.shared": "a number of experts",
    "model.dropout.residual": "a share",
    "model.dropout.embedding": "a share",
    "lora.dropout": "a share",
    "training.seed": "a seed",
    "optimizer.weightDecay.rate": "a rate",
    "optimizer.adamw.beta1": "a mean of the newest gradient alone",
    "optimizer.adamw.beta2": "a mean of the newest gradient alone",
    "optimizer.adamw.epsilonRoot": "a constant in a sum",
    "optimizer.muon.adamw.epsilonRoot": "a constant in a sum",
    "parallelism.replicas.momentum": "an outer update of the newest mean alone",
    "optimizer.lion.beta1": "an update of the gradient alone",
    "optimizer.lion.beta2": "a mean of the newest gradient alone",
    "optimizer.muon.adamw.beta1": "a mean of the newest gradient alone",
    "optimizer.muon.adamw.beta2": "a mean of the newest gradient alone",
    "optimizer.clipNorm": "off: the default cannot mean it, and `kubectl apply` removes null",
    "schedule.warmup": "a number of steps",
    "schedule.wsd.decay": "a number of steps",
    "schedule.cycles.warmup": "a number of steps",
    "schedule.finalFraction": "a share",
    "objective.dpo.labelSmoothing": "a share",
    "objective.distill.weight": "a share",
    "objective.distill.weightSchedule.end": "a share",
    "objective.distill.features.weight": "a factor",
    "objective.distill.features.weightSchedule.end": "a factor",
    "data.train.weight": "the source is not read, until a phase gives it a weight",
    "data.train.tokens.endOfDocument": "the id of a token",
    "evaluation.tokens.endOfDocument": "the id of a token",
    "data.train.synthetic.seed": "a seed",
    "evaluation.synthetic.seed": "a seed",
    "data.weightSchedule.weights": "the source is not read any more",
    "elastic.maxRestarts": "a number of restarts",
    "scheduling.tolerations.tolerationSeconds": "a time, as in Kubernetes",
    "ttlSecondsAfterFinished": "a time, as in Kubernetes",
}
"""Numbers whose 0 has the meaning of its unit, each with that meaning."""
ZERO_IS_A_VALUE |= {
    f"objective.distill.teacher.{path}": meaning
    for path, meaning in ZERO_IS_A_VALUE.items()
    if path.startswith("model.")
}
EMPTY_IS_A_VALUE = {
    "scheduling.nodeSelector": "a label without value, as in Kubernetes",
    "scheduling.tolerations.value": "a taint without value, as in Kubernetes",
    "program.config": "the function of the user reads it",
    "runtime.env.value": "a variable without value, as in Kubernetes",
}
"""Texts that may be empty, each with the meaning of an empty one."""


def walk(path: str, node: Node) -> list[tuple[str, Node]]:
    """Return all nodes of a schema with the path of their field."""
    properties, below = node.get("properties"), [node.get("items"), node.get("additionalProperties")]
    found = [(path, node)]
    if isinstance(properties, dict):
        found += [one for name, child in properties.items() for one in walk(f"{path}.{name}".lstrip("."), child)]
    return found + [one for child in below if isinstance(child, dict) for one in walk(path, child)]


NODES = walk("", spec_schema())


def test_the_expression_finds_what_it_should() -> None:
    bad = ("0 disables it.", "Use -1 to turn it off.", "Steps. Empty: no limit.", "It is off with 0.", "-1 infers it.")

    assert [text for text in bad if not OFF.search(text)] == []
    assert not OFF.search("Reads 10 files. Without it, learning is off.")


def test_one_description_gives_a_number_the_meaning_of_off() -> None:
    assert [path for path, node in NODES if OFF.search(str(node.get("description", "")))] == ["optimizer.clipNorm"]


def test_only_the_degrees_of_a_mesh_may_be_negative() -> None:
    negative = {path for path, node in NODES if isinstance(least := node.get("minimum"), int | float) and least < 0}

    assert negative == {f"parallelism.{network}.{axis}" for network in ("ici", "dcn") for axis in AXES}


def test_zero_is_legal_only_where_it_is_a_value() -> None:
    legal = {path for path, node in NODES if node.get("minimum") == 0 and not node.get("exclusiveMinimum")}

    assert legal == set(ZERO_IS_A_VALUE)


def test_an_empty_text_is_legal_only_where_it_is_a_value() -> None:
    texts = [(path, node) for path, node in NODES if node.get("type") == "string" and "enum" not in node]
    legal = {path for path, node in texts if not node.get("minLength") and re.search(str(node.get("pattern", "")), "")}

    assert legal == set(EMPTY_IS_A_VALUE)
