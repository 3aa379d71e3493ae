"""Pod profiles that an administrator adds, from the shipped ones or from their own fields.

Profiles are trusted: they may give pods any right. The checks find typing errors, and fields that the operator sets.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trainingjob_api.base import Label, LabelKey, Strict
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.names import nearest_names
from trainingjob_operator.core.planner.pod_profile import PodProfile, dump_part
from trainingjob_operator.core.planner.problem_messages import join_words
from trainingjob_operator.shell.accelerators import load_accelerators
from trainingjob_operator.shell.added_presets import load_presets
from trainingjob_operator.shell.added_values import InvalidRow, Table, check_rows, describe_error, read_rows
from trainingjob_operator.shell.shipped_profiles import SHIPPED

TABLE: Table = "podProfiles"
MAX_NAME = 63
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
SPEC_FIELDS = (
    "dnsPolicy", "hostIPC", "hostNetwork", "hostUsers", "initContainers", "nodeSelector", "resourceClaims",
    "runtimeClassName", "schedulerName", "securityContext", "tolerations", "volumes",
)  # fmt: skip
"""Fields of a pod's spec that a profile may have. The operator decides the others."""
CONTAINER_FIELDS = ("env", "resources", "securityContext", "volumeMounts")
OWN_VOLUMES = frozenset(("config", "token", "tmp", "shm", "compile-cache", "snapshots"))
"""Volumes of the operator, besides those of a job, whose names begin with `volume-`."""
OWN_LABELS = ("trainingjob.dev/", "jobset.sigs.k8s.io/", "batch.kubernetes.io/", "app.kubernetes.io/managed-by")
NAMESPACE = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
OWN_VARIABLES = "TRAININGJOB_"


class MetadataRow(Strict):
    """Metadata of the pods."""

    annotations: dict[LabelKey, Annotated[str, Field(max_length=65536)]] = Field(default_factory=dict)
    labels: dict[LabelKey, Label] = Field(default_factory=dict)


class ProfileRow(Strict):
    """One profile; `core.planner.pod_profile.PodProfile` documents the fields."""

    shipped: Annotated[str, Field(alias="from")] = ""
    """Shipped profile that the other fields of the row override."""
    accelerators: tuple[str, ...] = ()
    network: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    metadata: MetadataRow = MetadataRow()
    spec: dict[str, Any] = Field(default_factory=dict)
    container: dict[str, Any] = Field(default_factory=dict)
    source: Annotated[str, Field(max_length=256)] = ""
    namespaces: tuple[Annotated[str, Field(pattern=NAMESPACE)], ...] = ()


@dataclass(frozen=True)
class ProfileTable:
    """The resulting profiles, and the rows that they do not include."""

    profiles: tuple[PodProfile, ...] = ()
    invalid_rows: tuple[InvalidRow, ...] = ()


@dataclass(frozen=True)
class AddedFiles:
    """One file per table. None: no file."""

    accelerators: Path | None = None
    presets: Path | None = None
    pod_profiles: Path | None = None


def load_catalog(files: AddedFiles) -> tuple[Catalog, tuple[InvalidRow, ...]]:
    """Return the catalog with the rows of all files, and the rows that it does not include."""
    hardware, models = load_accelerators(files.accelerators), load_presets(files.presets)
    profiles = load_profiles(files.pod_profiles, hardware.hardware.accelerators)
    catalog = Catalog(hardware.hardware.with_profiles(profiles.profiles), models.presets)
    return catalog, (*hardware.invalid_rows, *models.invalid_rows, *profiles.invalid_rows)


def load_profiles(path: Path | None, accelerators: Collection[str]) -> ProfileTable:  # None: no profiles
    """Return the profiles of a file. An invalid file is reported and raises nothing."""
    return _read_table(read_rows(TABLE, path), accelerators) if path else ProfileTable()


def read_profiles(content: Any, accelerators: Collection[str]) -> ProfileTable:
    """Return the profiles of a map from names to rows, for the accelerators of a hardware table."""
    return _read_table(check_rows(TABLE, content), accelerators)


def _read_table(added: dict[str, Any] | InvalidRow, accelerators: Collection[str]) -> ProfileTable:
    if isinstance(added, InvalidRow):
        return ProfileTable(invalid_rows=(added,))
    profiles: list[PodProfile] = []
    invalid_rows: list[InvalidRow] = []
    for name, raw in added.items():
        result = _read_row(name, raw, accelerators, profiles)
        if isinstance(result, InvalidRow):
            invalid_rows.append(result)
        else:
            profiles.append(result)
    return ProfileTable(tuple(profiles), tuple(invalid_rows))


def _read_row(
    name: str, raw: Any, accelerators: Collection[str], earlier: Collection[PodProfile]
) -> PodProfile | InvalidRow:
    if not _NAME.match(name) or len(name) > MAX_NAME:
        return InvalidRow(TABLE, name, f"the name must be at most {MAX_NAME} lower-case letters, digits, '.' and '-'.")
    try:
        row = ProfileRow.model_validate(raw, by_name=False, by_alias=True)
        if row.shipped:
            if row.shipped not in SHIPPED:
                return InvalidRow(TABLE, name, _describe_unknown(row.shipped))
            overrides = {key: value for key, value in raw.items() if key != "from"}
            row = ProfileRow.model_validate(_override(SHIPPED[row.shipped], overrides), by_name=False, by_alias=True)
    except ValidationError as error:
        return InvalidRow(TABLE, name, describe_error(error))
    problems = [*_check_fields(row), *_check_accelerators(row, accelerators, earlier)]
    if problems:
        return InvalidRow(TABLE, name, " ".join(problems))
    metadata = {key: part for key, part in row.metadata.model_dump().items() if part}
    parts = (dump_part(metadata), dump_part(row.spec), dump_part(row.container))
    return PodProfile(name, *parts, row.accelerators, row.network, row.source, row.namespaces)


def _describe_unknown(name: str) -> str:
    nearest = nearest_names(name, tuple(SHIPPED))
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return f"from: {name} is not a shipped profile. There are {join_words(tuple(SHIPPED))}.{hint}"


def _override(shipped: Any, overrides: Any) -> Any:
    """Return a shipped row with the fields of a row: objects are merged, all else is replaced, lists too."""
    if not isinstance(shipped, dict) or not isinstance(overrides, dict):
        return overrides
    return {**shipped, **{key: _override(shipped.get(key), value) for key, value in overrides.items()}}


def _check_fields(row: ProfileRow) -> Iterator[str]:
    for path, part, allowed in (("spec", row.spec, SPEC_FIELDS), ("container", row.container, CONTAINER_FIELDS)):
        for key in part.keys() - set(allowed):
            yield f"{path}.{key}: is not a field of a profile, which are {join_words(allowed)}."
    for label in row.metadata.labels:
        if label.startswith(OWN_LABELS):
            yield f"metadata.labels.{label}: the operator sets this label."
    yield from _check_lists(row)
    security = row.container.get("securityContext")
    if isinstance(security, dict) and security.get("privileged") and not security.get("allowPrivilegeEscalation"):
        yield "container.securityContext: `privileged: true` requires `allowPrivilegeEscalation: true`."


def _check_lists(row: ProfileRow) -> Iterator[str]:
    """Yield problems of lists whose items have names: no objects, no name, or a name that the operator uses."""
    named_lists = {
        "spec.volumes": row.spec.get("volumes", []),
        "spec.initContainers": row.spec.get("initContainers", []),
        "spec.resourceClaims": row.spec.get("resourceClaims", []),
        "container.env": row.container.get("env", []),
        "container.volumeMounts": row.container.get("volumeMounts", []),
    }
    for path, items in named_lists.items():
        if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("name") for item in items):
            yield f"{path}: must be a list of objects with a `name`."
            continue
        names = [str(item["name"]) for item in items]
        if path != "container.volumeMounts":  # a volume may have several mounts
            yield from (f"{path}: {name} is listed twice." for name in sorted({n for n in names if names.count(n) > 1}))
        if path == "container.env":
            yield from (f"{path}: the operator sets {name}." for name in names if name.startswith(OWN_VARIABLES))
        elif path == "spec.volumes":
            reserved = [name for name in names if name in OWN_VOLUMES or name.startswith("volume-")]
            yield from (f"{path}: {name} is the name of a volume of the operator." for name in reserved)


def _check_accelerators(
    row: ProfileRow, accelerators: Collection[str], earlier: Collection[PodProfile]
) -> Iterator[str]:
    for accelerator in row.accelerators:
        if accelerator not in accelerators:
            yield f"accelerators: {accelerator} is not in the hardware table."
        for profile in earlier:
            if accelerator in profile.accelerators and _share_namespaces(row, profile):
                yield f"accelerators: jobs on {accelerator} get the profile {profile.name}, which is listed before."


def _share_namespaces(row: ProfileRow, profile: PodProfile) -> bool:
    """Return whether a namespace may have both profiles."""
    return not row.namespaces or not profile.namespaces or bool(set(row.namespaces) & set(profile.namespaces))
