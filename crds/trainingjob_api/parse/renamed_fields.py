"""Fields that a release renamed or moved: a job with an old name gets the new one as its correction."""

from typing import Any

from trainingjob_api.fields import Location

RENAMED_FIELDS: dict[Location, tuple[str, ...]] = {
    ("elastic", "badNodes"): ("nodeExclusion",),
    ("elastic", "drills"): ("faultInjection",),
    ("elastic", "hangAfter"): ("progressTimeout",),
    ("elastic", "shadowWorld"): ("hotStandby",),
    ("elastic", "silenceAfter"): ("heartbeatTimeout",),
    ("optimizer", "beta1"): ("adamw.beta1", "lion.beta1"),
    ("optimizer", "beta2"): ("adamw.beta2", "lion.beta2"),
    ("optimizer", "epsilon"): ("adamw.epsilon",),
    ("schedule", "warmupSteps"): ("warmup",),
}
"""New name, or path below the same object, by the old path without list indices; several depend on a `type`.

The values are unchanged. `docs/api-versions.md` lists all renames.
"""


def find_new_names(location: Location) -> tuple[str, ...]:
    """Return the new names of a renamed field; empty: the field was not renamed."""
    return RENAMED_FIELDS.get(tuple(part for part in location if isinstance(part, str)), ())


def find_new_places(name: str) -> tuple[Location, ...]:
    """Return the paths of the fields that once had a name, in any section."""
    return tuple(
        (*old[:-1], *new.split(".")) for old, news in RENAMED_FIELDS.items() if old[-1] == name for new in news
    )


def hint_restructured(location: Location, value: Any) -> str:
    """Return the replacement of a field that another structure replaces; empty: no such replacement."""
    if location != ("checkpoint", "readers"):
        return ""
    if value == "allHosts":
        return "Remove it: each host reads its own part by default."
    return "Write `restore: {broadcastFrom: oneReplica}` in its place."
