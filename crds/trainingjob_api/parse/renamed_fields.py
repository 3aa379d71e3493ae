"""Fields that a release renamed: a job with an old name gets the new one as its correction."""

from typing import Any

from trainingjob_api.fields import Location

RENAMED_FIELDS: dict[Location, str] = {
    ("elastic", "badNodes"): "nodeExclusion",
    ("elastic", "drills"): "faultInjection",
    ("elastic", "hangAfter"): "progressTimeout",
    ("elastic", "shadowWorld"): "hotStandby",
    ("elastic", "silenceAfter"): "heartbeatTimeout",
    ("schedule", "warmupSteps"): "warmup",
}
"""New name by the path of a field that kept its place and its values. `docs/api-versions.md` lists all renames."""


def find_new_name(location: Location) -> str:
    """Return the new name of a renamed field; empty: the field was not renamed."""
    return RENAMED_FIELDS.get(location, "")


def hint_restructured(location: Location, value: Any) -> str:
    """Return the replacement of a field that another structure replaces; empty: no such replacement."""
    if location != ("checkpoint", "readers"):
        return ""
    if value == "allHosts":
        return "Remove it: each host reads its own part by default."
    return "Write `restore: {broadcastFrom: oneReplica}` in its place."
