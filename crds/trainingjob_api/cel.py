"""CEL rules that the API server checks: the form of unions, and immutable fields.

The API server reports them before it calls the webhook, and a violation skips the webhook. So these rules cover only
which fields are set. Rules that compare values are in the webhook, which can name them and the nearest legal values.
"""

from typing import Any

from pydantic.alias_generators import to_camel

from trainingjob_api.base import Strict
from trainingjob_api.spec.evaluation import Evaluation
from trainingjob_api.spec.protection import Protection
from trainingjob_api.spec.training import Training

type CelRule = dict[str, Any]
type Rules = dict[tuple[str, ...], tuple[CelRule, ...]]

MAX_NAME = 38
"""The longest pod name adds 25 characters, more if slice or host indices have two digits, as the webhook checks."""

ROOT_RULES: tuple[CelRule, ...] = (
    {
        "rule": f"size(self.metadata.name) <= {MAX_NAME}",
        "message": f"metadata.name must have at most {MAX_NAME} characters: it begins the names of pods.",
    },
    {
        # The API server already allows only these characters, besides a digit first and dots. A pattern match would
        # cost a fifth of the budget of one rule.
        "rule": "self.metadata.name >= 'a' && !self.metadata.name.contains('.')",
        "message": "metadata.name must be lower-case letters, digits and `-`, with a letter first and no `-` last.",
    },
)


def _field_rule(path: str, rule: str, message: str) -> CelRule:
    """Return a rule whose error is reported at a field below the checked object."""
    return {"rule": rule, "message": message, "fieldPath": path}


IMMUTABLE = "self == oldSelf"
"""The rule of an immutable field."""


def _immutable(reason: str, instead: str) -> CelRule:
    return {"rule": IMMUTABLE, "message": f"cannot change: {reason} {instead}"}


def _immutable_except(free: tuple[str, ...], path: tuple[str, ...], section: type[Strict], fixed: CelRule) -> Rules:
    """Return rules that let the named fields of an object change, and no others.

    A transition rule is evaluated only if the field existed before and still exists. So the object has an additional
    rule for each optional field.
    """
    others = {to_camel(name): field for name, field in section.model_fields.items() if to_camel(name) not in free}
    optional = [
        _field_rule(f".{name}", f"has(self.{name}) == has(oldSelf.{name})", fixed["message"])
        for name, field in others.items()
        if not field.is_required() and field.default is None
    ]
    return {path: tuple(optional), **{(*path, name): (fixed,) for name in others}}


_COUNTS = (
    _field_rule(
        ".count",
        "!has(self.count) || !(has(self.min) || has(self.max))",
        "excludes min and max: a fixed size is `count` alone, an elastic one `min` and `max`.",
    ),
    {
        "rule": "has(self.count) || has(self.min) || has(self.max)",
        "message": "says not how many: write `count` for a fixed size, or `min` and `max` for an elastic one.",
    },
    _field_rule(
        ".min",
        "has(self.count) || !has(self.max) || has(self.min)",
        "is missing beside spec.slices.max: an elastic size has both.",
    ),
    _field_rule(
        ".max",
        "has(self.count) || !has(self.min) || has(self.max)",
        "is missing beside spec.slices.min: an elastic size has both.",
    ),
)
_TOKENIZER = (
    _field_rule(
        ".path",
        "self.type != 'tokenizers' || has(self.path)",
        "is missing: write the absolute path of a tokenizer.json file in the pod.",
    ),
    _field_rule(".path", "self.type != 'byte' || !has(self.path)", "only goes with type: tokenizers."),
    _field_rule(
        ".endOfDocument", "self.type != 'byte' || !has(self.endOfDocument)", "only goes with type: tokenizers."
    ),
)
_ENV: CelRule = {
    "rule": "[has(self.value), has(self.secretKeyRef), has(self.configMapKeyRef)].filter(given, given).size() == 1",
    "message": "must have exactly one of value, secretKeyRef and configMapKeyRef.",
}
_RESUME_ADVICE = (
    "Delete this job and create it anew with the same checkpoint.uri and `checkpoint.takeover: true`: it goes on from "
    "the newest checkpoint."
)
_NEW_JOB_ADVICE = "Create another job with a checkpoint.uri of its own: it begins at step 0."
_WORLD = _immutable("the worlds of the job were planned with it.", _RESUME_ADVICE)
_MODEL = _immutable("the checkpoints hold the state of this model.", _NEW_JOB_ADVICE)
_TRAINING = _immutable(
    "the loss curve would no longer be that of one job.",
    f"{_RESUME_ADVICE} A different sequenceLength or seed requires a new checkpoint.uri.",
)
_LOSS_CURVE = _immutable("the loss curve would no longer be that of one job.", _RESUME_ADVICE)
_DATA = _immutable("the order of the data that was trained on depends on it.", _NEW_JOB_ADVICE)
_STORAGE = _immutable(
    "the job owns its folder.", "Create another job: with `checkpoint.takeover: true` it owns a folder of old."
)
_INITIALIZATION = _immutable("the job has begun with what it says.", _NEW_JOB_ADVICE)
_PODS = _immutable("the pods were made with it.", _RESUME_ADVICE)
_SAME_EVALUATIONS = {
    "rule": "self.map(one, one.name) == oldSelf.map(one, one.name)",
    "message": _LOSS_CURVE["message"],
}

SPEC_RULES: Rules = {
    ("slices",): _COUNTS,
    ("slices", "accelerator"): (_WORLD,),
    ("slices", "topology"): (_WORLD,),
    ("parallelism",): (_WORLD,),
    ("model",): (_MODEL,),
    ("data",): (_DATA,),
    ("tokenizer",): (*_TOKENIZER, _DATA),
    **_immutable_except(("steps",), ("training",), Training, _TRAINING),
    ("optimizer",): (_LOSS_CURVE,),
    ("schedule",): (_LOSS_CURVE,),
    ("precision",): (_MODEL,),
    ("memory",): (_WORLD,),
    ("checkpoint",): (
        _field_rule(".snapshots", "has(self.snapshots) == has(oldSelf.snapshots)", _PODS["message"]),
        _field_rule(".restore", "has(self.restore) == has(oldSelf.restore)", _PODS["message"]),
        _field_rule(".backup", "has(self.backup) == has(oldSelf.backup)", _PODS["message"]),
        _field_rule(
            ".initializeFrom", "has(self.initializeFrom) == has(oldSelf.initializeFrom)", _INITIALIZATION["message"]
        ),
    ),
    ("checkpoint", "uri"): (_STORAGE,),
    ("checkpoint", "snapshots"): (_PODS,),
    ("checkpoint", "restore"): (_PODS,),
    ("checkpoint", "backup"): (_PODS,),
    ("checkpoint", "initializeFrom"): (_INITIALIZATION,),
    ("checkpoint", "takeover"): (_STORAGE,),
    ("elastic", "heartbeatTimeout"): (_PODS,),
    ("elastic", "hotStandby"): (_PODS,),
    ("elastic", "faultInjection"): (_PODS,),
    **_immutable_except(("maxRollbacks",), ("protection",), Protection, _LOSS_CURVE),
    ("evaluation",): (_SAME_EVALUATIONS,),
    **_immutable_except(("name", "everySteps"), ("evaluation", "[]"), Evaluation, _LOSS_CURVE),
    ("metrics",): (_PODS,),
    ("runtime",): (_PODS,),
    ("runtime", "env", "[]"): (_ENV,),
    ("scheduling",): (_PODS,),
}
"""Rules of each object of the spec. Fields without an immutability rule may change while the job trains."""
