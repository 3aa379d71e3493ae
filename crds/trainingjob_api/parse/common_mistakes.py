"""Corrections for spellings from Kubernetes and other frameworks: what users write, and the spec's form of it."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from trainingjob_api.base import SOURCE_PATH, STORE_URI, TEMPLATE_PATH, TOKENIZER_PATH
from trainingjob_api.fields import Location
from trainingjob_api.problem import as_text
from trainingjob_api.schema import spec_schema

MAX_SUGGESTED = 240
"""Maximum characters of a list or an object in a suggestion."""

type Correction = tuple[str, tuple[str, ...]]
"""What must hold, without the value, and the nearest legal values."""

ALIASES: dict[str, str] = {
    **dict.fromkeys(("dp", "data", "replica", "replicas", "ddp", "batch"), "data"),
    **dict.fromkeys(("fsdp", "zero", "sharded", "shard"), "fsdp"),
    **dict.fromkeys(("tp", "mp", "model", "tensor", "tensors", "autoregressive"), "tensor"),
    **dict.fromkeys(("sp", "cp", "seq", "sequence", "context", "ring"), "context"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage", "stages"), "stage"),
    **dict.fromkeys(("ep", "expert", "experts", "moe"), "expert"),
}
"""Names of mesh axes in other frameworks, without prefixes and suffixes such as `ici_`, `_parallelism`, `_size`."""
_AXIS_AFFIXES = re.compile(r"^(ici|dcn|num)_|_?(parallelism|parallel|size|degree|axis|dim)$")

_VOLUME = "mount a claim of it in spec.runtime.volumes, and write the path below its mountPath."
_AZURE = (
    "must not be in Azure: TensorStore, which reads and writes arrays, has no driver for it. Mount the container by "
    "its CSI driver as a claim in spec.runtime.volumes, and write the path below its mountPath."
)
_STORES: dict[str, str] = {
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
    **dict.fromkeys(("gs", "gcs", "s3", "s3a", "s3n", "r2", "oci", "oss"), (
        "must be a path in the pod. An object store is reached through a volume of its CSI driver: " + _VOLUME
    )),
}  # fmt: skip
_HUB = ("hf", "huggingface")
_HUB_KINDS = ("datasets", "models")
"""First parts of the paths that `hf://` names."""
_BUCKETS = {"gs": "gs", "gcs": "gs", "s3": "s3", "s3a": "s3", "s3n": "s3"}
"""The scheme of a store for each scheme that programs use for it."""
_FILES = (SOURCE_PATH, TOKENIZER_PATH, TEMPLATE_PATH)
"""Patterns of files that may be in a bucket."""
_WILDCARD = re.compile(r"[*?\[\]{}]")
_ILLEGAL_IN_BUCKET = re.compile(r"[^a-z0-9._-]+")
_OTHER_STORE = "must be a path in the pod. What is elsewhere must be copied to a volume first: " + _VOLUME
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,3}(?!/)(.*)", re.DOTALL)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FOLDERS = ("data", "shared", "mnt", "corpus", "runs", "checkpoints", "home", "tmp", "archive", "datasets", "text")
_FILE = re.compile(r"\.(json|txt|model|bin)$")
_ILLEGAL_IN_PATH = re.compile(r"[^A-Za-z0-9_@%+=:,./-]+")
PLAIN_PATH = r"^/([A-Za-z0-9_@%+=:,.-]+/?)*$"


def correct_path(
    location: Location, path: str, pattern: str
) -> Correction | None:  # None: only its first `/` is missing
    """Return the error of a path, and its nearest legal values."""
    if (match := _URL.fullmatch(path)) and pattern == STORE_URI:
        return _correct_folder(match[1].lower(), match[2])
    if match and pattern in _FILES and (bucket_scheme := _BUCKETS.get(match[1].lower())):
        return _correct_files(bucket_scheme, match[1], match[2], pattern)
    is_plain = pattern in (PLAIN_PATH, STORE_URI)
    if match := _URL.fullmatch(path):
        scheme, rest = match[1].lower(), f"/{match[2].lstrip('/')}"
        if scheme in _HUB:
            return _correct_hub(location, match[2]), ()
        local = (_clean(rest) if is_plain else rest,) if scheme == "file" else ()
        message = "must be a path in the pod, without `file:`." if local else _STORES.get(scheme, _OTHER_STORE)
        return message, tuple(map(as_text, local))
    if path.startswith("~") or "$" in path:
        return "must be written out: `~` and variables are not replaced in this field.", ()
    is_hub_id = _HUB_ID.fullmatch(path) and path.partition("/")[0] not in _FOLDERS and not _FILE.search(path)
    if is_hub_id and location[-1] == "path":
        return _correct_hub(location, path), ()
    if "\\" in path:
        return "must be a path of Linux: folders are separated by `/`.", ()
    if not is_plain:
        return None
    illegal = dict.fromkeys(character for found in _ILLEGAL_IN_PATH.findall(path) for character in found)
    if illegal:
        names = ", ".join(_name(character) for character in illegal)
        return f"must hold letters, digits and `_@%+=:,.-` only, but has {names}.", _cleaned_if_different(path)
    return ("must not have an empty folder name, `//`.", _cleaned_if_different(path)) if path.startswith("/") else None


def _correct_hub(location: Location, path: str) -> str:
    """Return the error of a path that names a repository of the Hugging Face Hub."""
    parts = [part for part in path.split("/") if part]
    repository = "/".join(parts[1:3] if parts[:1] and parts[0] in _HUB_KINDS else parts[:2])
    first = "must be a path in the pod or the URI of a bucket."
    match location:
        case [*_, "huggingFace", "path"]:
            return f"{first} For the Hugging Face Hub, write `repository: {repository}` in its place."
        case ["data", "train", _, "path"] | ["evaluation", _, "path"]:
            return f"{first} For the Hugging Face Hub, write `huggingFace: {{repository: {repository}}}` in its place."
        case ["tokenizer", "path"]:
            return (
                f"{first} For the Hugging Face Hub, write `type: huggingFace` and `huggingFace: {{repository: "
                f"{repository}}}` in its place."
            )
    return f"{first} What is on the Hugging Face Hub must be copied to a volume first: {_VOLUME}"


def _correct_files(bucket_scheme: str, scheme: str, rest: str, pattern: str) -> Correction:
    """Return the error of the URI of files in a bucket. `bucket_scheme` is the scheme that the trainer reads."""
    bucket, _, name = rest.strip("/").partition("/")
    fixed, wildcards = _cut_wildcards(name) if pattern == SOURCE_PATH else (name, "")
    nearest = f"{bucket_scheme}://{_ILLEGAL_IN_BUCKET.sub('-', bucket.lower()).strip('-._')}{_clean(fixed).rstrip('/')}"
    named = (as_text(nearest),) if re.fullmatch(pattern, nearest) else ()
    if wildcards:
        return f"must not contain wildcards: write `pattern: {as_text(wildcards)}`.", named
    if scheme != bucket_scheme:
        return f"must begin with {bucket_scheme}://.", named
    if pattern == TEMPLATE_PATH and not named:
        return "must be the URI of a .jinja or .json file, such as gs://bucket/chat_template.jinja.", ()
    return (
        "must have a bucket of 3 to 63 lower-case letters, digits and `._-`, and names of letters, digits and "
        "`_@%+=:,.-` that are not empty."
    ), named


def _cut_wildcards(name: str) -> tuple[str, str]:
    """Return the folder before the first wildcard of a path, and the rest; empty: there is none."""
    parts = name.split("/")
    first = next((index for index, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
    return "/".join(parts[:first]), "/".join(parts[first:])


def _correct_folder(scheme: str, rest: str) -> Correction:
    """Return the error of a URI where a folder of a bucket may be named."""
    bucket, _, folder = rest.strip("/").partition("/")
    bucket_scheme = _BUCKETS.get(scheme)
    if _STORES.get(scheme) == _AZURE:
        return _AZURE, ()
    if bucket_scheme is None:
        message = f"must begin with gs:// or s3://, or be a path in the pod: there is no store for {scheme}://."
        return message, (as_text(_clean(rest)),) if scheme == "file" else ()
    nearest = f"{bucket_scheme}://{_ILLEGAL_IN_BUCKET.sub('-', bucket.lower()).strip('-._')}{_clean(folder or 'run')}"
    named = (as_text(nearest),) if re.fullmatch(STORE_URI, nearest) else ()
    if scheme != bucket_scheme:
        return f"must begin with {bucket_scheme}://.", named
    if not folder:
        return "must name a folder of the bucket: the job must not share its folder.", named
    return (
        "must have a bucket of 3 to 63 lower-case letters, digits and `._-`, and a folder of letters, digits and "
        "`_@%+=:,.-` without empty names."
    ), named


def _name(character: str) -> str:
    if character == " ":
        return "a space"
    return f"`{character}`" if character.isprintable() else f"U+{ord(character):04X}"


def _cleaned_if_different(path: str) -> tuple[str, ...]:
    cleaned = _clean(path)
    return (as_text(cleaned),) if cleaned not in ("/", path) else ()


def _clean(path: str) -> str:
    """Return a path with `-` in place of illegal characters, and without empty folder names."""
    parts = (_ILLEGAL_IN_PATH.sub("-", part).strip("-") for part in path.split("/"))
    return "/" + "/".join(part for part in parts if part)


def correct_boolean(value: bool, kind: str, choices: tuple[str, ...]) -> Correction:  # noqa: FBT001  # the value itself
    """Return the correction for a boolean that YAML parsed from a word."""
    spellings = ("yes", "on", "true") if value else ("no", "off", "false")
    reads = f"YAML reads `{spellings[0]}`, `{spellings[1]}` and `{spellings[2]}` without quotes as {spellings[2]}"
    if kind == "choice":
        nearest = tuple(choice for choice in (() if value else ("none", "never", *spellings)) if choice in choices)
        return f"must be one of {', '.join(choices)}. {reads}.", nearest
    return f"must be text. {reads}: write quotes.", tuple(f'"{spelling}"' for spelling in spellings)


def find_axis(name: str) -> str:
    """Return the mesh axis for another framework's name; empty: unknown."""
    normalized = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_")
    while (shorter := _AXIS_AFFIXES.sub("", normalized)) != normalized:
        normalized = shorter
    return ALIASES.get(normalized, "")


def holds_axes(location: Location) -> bool:
    """Return whether a path holds the names of mesh axes: axis sizes, or a sharding rule."""
    return location[:2] in (("parallelism", "ici"), ("parallelism", "dcn"), ("parallelism", "rules"))


def hint_unknown(location: Location, value: Any) -> str:
    """Return the replacement of a field from a pod spec or another framework; empty: no such replacement."""
    *parents, last = ("[]" if isinstance(part, int) else part for part in location)
    name, given = str(last), value if isinstance(value, dict) else {}
    match parents:
        case ["runtime", "env", "[]"] if name == "valueFrom":
            found = {key: given[key] for key in ("secretKeyRef", "configMapKeyRef") if isinstance(given.get(key), dict)}
            return f"Write {_fields(found) or '`secretKeyRef` or `configMapKeyRef`'} in its place."
        case ["runtime", "volumes", "[]"] if name == "persistentVolumeClaim":
            found = {key: given[key] for key in ("claimName", "readOnly") if key in given}
            return f"Write {_fields(found) or '`claimName`'} in its place."
        case ["runtime", "volumes", "[]"] if name in _OTHER_VOLUMES:
            return "Only a PersistentVolumeClaim can be mounted: write its `claimName`."
        case ["runtime", "resources"] if name in ("limits", "requests"):
            found = {key: given[key] for key in ("cpu", "memory") if key in given}
            return f"Write {_fields(found) or '`cpu` and `memory`'} in its place: requests and limits follow from them."
        case ["runtime", "resources"] if "/" in name or name.lower() in ("gpu", "gpus", "tpu", "tpus"):
            return "Accelerators of a host follow from spec.slices."
        case ["data", "train", "[]"] | ["evaluation", "[]"] if name in ("repo", "repoId", "dataset", "split", "subset"):
            field = {"split": "split", "subset": "configuration"}.get(name, "repository")
            return f"For the Hugging Face Hub, write it as `huggingFace.{field}`."
        case ["schedule"] if name == "stable":
            return (
                "The rate is stable between `warmup` and the decay: write the length of the decay, `wsd: {decay: 10%}`."
            )
        case ["scheduling"] if name == "maxChipHours":
            return "`spec.activeDeadlineSeconds` limits the run time, and `spec.slices.max` the chips."
    return ""


_OTHER_VOLUMES = (
    "hostPath", "emptyDir", "nfs", "csi", "configMap", "secret", "ephemeral", "projected", "downwardAPI",
    "gcePersistentDisk", "awsElasticBlockStore", "azureFile", "cephfs", "glusterfs", "iscsi", "local", "image",
)  # fmt: skip


def _fields(found: Mapping[str, Any]) -> str:
    return " and ".join(f"`{key}: {_json(value)}`" for key, value in found.items())


def reshape(location: Location, kind: str, value: Any) -> tuple[str, ...]:
    """Return a value of another shape in the field's shape: a map as a list, an object as its name."""
    node = schema_at(location)
    shaped = _reshape(node, kind, value)
    text = "" if shaped is None else as_text(shaped) if isinstance(shaped, str) else _json(shaped)
    return (text,) if 0 < len(text) <= MAX_SUGGESTED else ()


_SCALARS = (str, int, float)


def _reshape(node: Mapping[str, Any], kind: str, value: Any) -> Any:
    match kind, value:
        case "string", {"name": str(name)} | {"claimName": str(name)} if len(value) == 1:
            return name
        case "string", [str(only)]:
            return only
        case "tuple", _:
            return _reshape_list(node["items"].get("properties", {}), value)
        case "dict", list() if value and all(isinstance(item, dict) for item in value):
            return {key: field_value for item in value for key, field_value in item.items()}
        case "dict", str() | list():
            pairs = [str(text).partition("=") for text in ([value] if isinstance(value, str) else value)]
            return {key: text for key, _, text in pairs} if pairs and all(sign for _, sign, _ in pairs) else None
        case "model", [dict(only)]:
            return only
    return None


def _reshape_list(fields: Mapping[str, Any], value: Any) -> Any:
    """Return the list for a value; its items are objects with these fields, or texts if there are no fields."""
    match value:
        case str() if not fields:
            return [part.strip() for part in value.split(",") if part.strip()] or None
        case {"name": str(name)} if len(value) == 1 and not fields:
            return [name]
        case dict() if value and value.keys() <= fields.keys():
            return [value]
        case dict() if value and "value" in fields and all(isinstance(item, _SCALARS) for item in value.values()):
            return [
                {"name": name, "value": item if isinstance(item, str) else _json(item)} for name, item in value.items()
            ]
        case dict() if value and "name" in fields and all(isinstance(item, dict) for item in value.values()):
            return [{"name": name, **item} for name, item in value.items()]
    return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def schema_at(location: Location) -> Mapping[str, Any]:
    """Return the schema of a path in the spec; an empty one if there is none."""
    node: Mapping[str, Any] = _spec_schema()
    for part in location:
        below = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        node = below or node.get("additionalProperties") or {}
    return node


@cache
def _spec_schema() -> Mapping[str, Any]:
    return spec_schema()
