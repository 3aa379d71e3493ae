"""Fields that a release renamed or moved: a job with an old name gets the new one as its correction."""

from typing import Any

from trainingjob_api.fields import Location
from trainingjob_api.notation import normalize_name

RENAMED_FIELDS: dict[Location, tuple[str, ...]] = {
    ("data", "train", "type"): ("format",),
    ("elastic", "badNodes"): ("nodeExclusion",),
    ("elastic", "drills"): ("faultInjection",),
    ("elastic", "hangAfter"): ("progressTimeout",),
    ("elastic", "shadowWorld"): ("hotStandby",),
    ("elastic", "silenceAfter"): ("heartbeatTimeout",),
    ("evaluation", "type"): ("format",),
    ("model", "experts", "loadBalanceWeight"): ("balance.lossWeight",),
    ("model", "initScale"): ("init.std",),
    ("model", "normEpsilon"): ("norm.epsilon",),
    ("model", "ropeTheta"): ("rope.theta",),
    ("optimizer", "beta1"): ("adamw.beta1", "lion.beta1"),
    ("optimizer", "beta2"): ("adamw.beta2", "lion.beta2"),
    ("optimizer", "epsilon"): ("adamw.epsilon",),
    ("schedule", "warmupSteps"): ("warmup",),
}
"""New name, or path below the same object, by the old path without list indices; several depend on a `type`.

The values are unchanged. `docs/api-versions.md` lists all renames.
"""


def find_new_names(location: Location) -> tuple[str, ...]:
    """Return the new names of a renamed field, ignoring case; empty: the field was not renamed."""
    *parents, last = (str(part) for part in location if not isinstance(part, int))
    return next((new for above, new in _find_renamed(last) if above == tuple(parents)), ())


def find_new_places(name: str) -> tuple[Location, ...]:
    """Return the paths of the fields that once had a name, in any section."""
    return tuple((*above, *new.split(".")) for above, new_names in _find_renamed(name) for new in new_names)


def _find_renamed(name: str) -> list[tuple[Location, tuple[str, ...]]]:
    """Return path of the object and new names of each field that once had a name."""
    normalized = normalize_name(name)
    return [(old[:-1], new) for old, new in RENAMED_FIELDS.items() if normalize_name(old[-1]) == normalized]


FORMER_NUMBERS: dict[Location, str] = {("optimizer", "weightDecay"): "rate"}
"""By the path of an object, its field for the number that the object replaced."""


def wrap_former_number(location: Location, value: Any) -> dict[str, Any] | None:  # None: it was never a number
    """Return the object that replaced a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {FORMER_NUMBERS[location]: value} if is_number and location in FORMER_NUMBERS else None


def hint_restructured(location: Location, value: Any) -> str:
    """Return the replacement of a field that another structure replaces; empty: no such replacement."""
    match location:
        case ("checkpoint", "readers") if value == "allHosts":
            return "Remove it: each host reads its own part by default."
        case ("checkpoint", "readers"):
            return "Write `restore: {broadcastFrom: oneReplica}` in its place."
        case ("checkpoint", "keep", "everySteps"):
            return f"Write `stages: [{{every: {value if isinstance(value, int) else 1000}}}]` in its place."
        case ("memory", "scan"):
            return "Remove it: layers are always compiled as one loop."
    return ""
