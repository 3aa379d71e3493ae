"""Files that offline commands read: TrainingJob documents, identified before validation, and catalogs.

A file may hold several documents, as `kubectl apply -f` accepts. Documents that are not TrainingJobs are reported, not
skipped: a misspelt `kind` must not look like success.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, ClassVar

import yaml

from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.spec.job import API_VERSION, GROUP, KIND
from trainingjob_api.yaml_limits import MAX_BYTES, YAML_ERRORS, BoundedLoader
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.shell.added_profiles import AddedFiles, load_catalog

STDIN = "-"
MIN_SIMILARITY = 0.9
"""Similarity ratio from which a word counts as a misspelling of another."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of UTF-16, which some Windows shells write."""


@dataclass(frozen=True)
class Document:
    """One YAML document. `location` is its source, as messages show it."""

    location: str
    content: Any

    @property
    def is_job(self) -> bool:
        """Return whether the document is a TrainingJob of the supported `apiVersion`."""
        return (
            isinstance(self.content, dict)
            and self.content.get("apiVersion") == API_VERSION
            and self.content.get("kind") == KIND
        )

    @property
    def is_misspelt(self) -> bool:
        """Return whether the document looks like a misspelt TrainingJob, by its API group or its kind.

        A kind of the same name in another project's API group does not count.
        """
        if self.is_job or not isinstance(self.content, dict):
            return False
        group = str(self.content.get("apiVersion", "")).partition("/")[0]
        is_similar = _is_similar(group, GROUP)
        return is_similar or ("." not in group and _is_similar(str(self.content.get("kind", "")), KIND))

    @property
    def name(self) -> str:
        """Return the object's name as messages show it; empty if it has none."""
        metadata = self.content.get("metadata") if isinstance(self.content, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else format_value(name) if isinstance(name, int | float) else ""

    @property
    def spec(self) -> Any:
        """Return the raw spec of a TrainingJob."""
        return self.content.get("spec")

    def describe(self) -> str:
        """Return a description of a document that is not a supported TrainingJob, for messages."""
        if not isinstance(self.content, dict) or "kind" not in self.content:
            return "not a Kubernetes object (it has no `kind`)"
        if self.content["kind"] == KIND:
            return f"a TrainingJob of apiVersion '{self.content.get('apiVersion', '')}', not '{API_VERSION}'"
        return f"a {self.content['kind']}, not a TrainingJob"


def _is_similar(text: str, expected: str) -> bool:
    """Return whether two texts match, ignoring case, punctuation and a small misspelling."""
    first, second = (re.sub(r"[^a-z0-9]", "", word.lower()) for word in (text, expected))
    return SequenceMatcher(None, first, second).ratio() >= MIN_SIMILARITY


def read_documents(files: Iterable[str], loader: type[BoundedLoader] | None = None) -> list[Document]:
    """Return the documents of all files in order; `-` is standard input. Empty documents are left out.

    The default loader reads YAML as `kubectl` does.

    Raises:
        UsageError: a file cannot be read or is not valid YAML.
    """
    return [document for file in files for document in _read_file(file, loader or KubectlLoader)]


def read_single_job(file: str) -> Document:
    """Return the only TrainingJob of a file.

    Raises:
        UsageError: the file cannot be read, or it does not hold exactly one TrainingJob.
    """
    documents = read_documents([file])
    jobs = [document for document in documents if document.is_job]
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        names = ", ".join(f'"{job.name}"' for job in jobs)
        raise UsageError(
            f"{_label(file)} must hold one TrainingJob, but holds {len(jobs)} ({names}). Move one to a separate file."
        )
    others = "; ".join(f"{document.location} is {document.describe()}" for document in documents)
    raise UsageError(f"{_label(file)} must hold one TrainingJob: " + (f"{others}." if others else "it is empty."))


def _read_file(file: str, loader: type[BoundedLoader]) -> list[Document]:
    label = _label(file)
    try:
        content = _read_bytes(file)
        text = content.decode()
    except UnicodeDecodeError as error:
        hint = " It looks like UTF-16: save it as UTF-8." if content[:2] in UTF_16 else ""
        raise UsageError(f"{label} is not UTF-8 text: {error.reason} at byte {error.start}.{hint}") from error
    except (OSError, ValueError) as error:  # ValueError: the path holds a null character
        raise UsageError(f"Cannot read {label}: {getattr(error, 'strerror', None) or error}.") from error
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"{label} must not be larger than 3 MiB, the limit of the API server. Move the TrainingJob to "
            "a separate file."
        )
    try:
        contents = list(yaml.load_all(text, Loader=loader))
    except YAML_ERRORS as error:
        raise UsageError(f"{label} is not valid YAML: {_describe_yaml_error(error)}") from error
    numbered_contents = [(number, content) for number, content in enumerate(contents, start=1) if content is not None]
    if len(contents) == 1:
        return [Document(label, content) for _, content in numbered_contents]
    return [Document(f"{label}, document {number},", content) for number, content in numbered_contents]


def _read_bytes(file: str) -> bytes:
    """Return a file's bytes, at most one more than the limit, because a device file can be endless."""
    if file == STDIN:
        return sys.stdin.buffer.read(MAX_BYTES + 1) if sys.stdin else b""
    with Path(file).open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _label(file: str) -> str:
    return "standard input" if file == STDIN else file


def _describe_yaml_error(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    if not isinstance(error, yaml.YAMLError):
        return "a value does not match its type or its tag."
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{' '.join(str(error).split())}."
    mark = error.problem_mark
    return f"{error.problem} in line {mark.line + 1}, column {mark.column + 1}."


class KubectlLoader(BoundedLoader):
    """YAML as `kubectl` reads it: duplicate keys are errors, dates are text, `3e-4` is a number, `y` is true.

    `kubectl` uses sigs.k8s.io/yaml, which reads the booleans of YAML 1.1.
    """

    bool_values: ClassVar = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """Reject duplicate keys; plain YAML loaders silently keep the last value."""
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            if key.value in keys:
                problem = f"the key `{key.value}` must be unique, but occurs twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


_REPLACED = {f"tag:yaml.org,2002:{tag}" for tag in ("timestamp", "int", "float")}
KubectlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_INT = re.compile(r"^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
KubectlLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
KubectlLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
KubectlLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def read_catalog(
    accelerators: Path | None = None, presets: Path | None = None, pod_profiles: Path | None = None
) -> Catalog:
    """Return the built-in accelerators and presets with those of files, and the pod profiles of one. None: no file.

    Rows that the operator would reject are reported as warnings and left out.

    Raises:
        UsageError: a file cannot be read, or holds no rows at all.
    """
    catalog, invalid_rows = load_catalog(AddedFiles(accelerators, presets, pod_profiles))
    if any(not row.name for row in invalid_rows):
        raise UsageError(" ".join(str(row) for row in invalid_rows))
    for row in invalid_rows:
        echo(f"Warning  {row}", err=True)
    return catalog
