"""Rows of the tables that map the keys of another program's config to the fields of a job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from trainingjob_operator.cli.convert.draft_job import DraftJob, is_repository

type Values = Mapping[str, Any]
"""The config of a source, with dots between the parts of a key."""

UNKNOWN = "the converter does not know this key"
EVALUATION_BATCH = "`evaluation[].maxPerDeviceBatch` limits the sequences that a device evaluates at once"
ATTENTION_DROPOUT = "weights of attention have no dropout: kernels whose memory is linear in the length hold no weights"


class NoCounterpartError(Exception):
    """A value that no field expresses. The text is the reason."""


def _copy(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Copy:
    """A key whose value is copied to a field."""

    path: str
    convert: Callable[[Any], Any] = _copy
    """Returns the value of the field. Raises `NoCounterpartError` if no field expresses the value."""
    off: tuple[Any, ...] = ()
    """Values that disable the option in the source, like an omitted field in a job."""


@dataclass(frozen=True)
class Combined:
    """A key that is read together with others."""


@dataclass(frozen=True)
class FillIn:
    """A key that names what users must fill in, unless its value is a URI of a bucket."""

    path: str
    example: Any
    text: str
    in_bucket: Callable[[Any, DraftJob], Any] | None = None  # None: users fill it in
    """Returns the value of the field for a source in a bucket. None: users fill it in."""


@dataclass(frozen=True)
class Omit:
    """A key without a counterpart."""

    reason: str
    off: tuple[Any, ...] = ()
    """Values that need no mention, because the job behaves like that."""


type Row = Copy | Combined | FillIn | Omit
type Table = Mapping[str, Row]
"""Rows by key. A key with `*` stands for several."""


def apply_rows(table: Table, values: Values, draft: DraftJob) -> None:
    """Copy all values of a source into a job, or list them as omissions."""
    for key, value in values.items():
        row = find_row(table, key)
        if isinstance(row, Copy) and value not in row.off:
            _copy_value(row, key, value, draft)
        elif isinstance(row, FillIn) and value not in (None, "", []) and not _use_uri(row, value, draft):
            draft.set_placeholder(row.path, row.example, f"{row.text} The source has `{key}: {value}`.")
        elif isinstance(row, Omit) and value not in row.off:
            draft.omit(key, value, row.reason)
        elif row is None:
            draft.omit(key, value, UNKNOWN)


def _use_uri(row: FillIn, value: Any, draft: DraftJob) -> bool:
    """Set the field of a row, if the value is in a bucket that a job can read; return whether it is set."""
    field_value = row.in_bucket(value, draft) if row.in_bucket and draft.get(row.path) is None else None
    if field_value is not None:
        draft.set(row.path, field_value)
    return field_value is not None


def _copy_value(row: Copy, key: str, value: Any, draft: DraftJob) -> None:
    try:
        draft.set(row.path, row.convert(value))
    except NoCounterpartError as error:
        draft.omit(key, value, str(error))
    except (TypeError, ValueError):
        draft.omit(key, value, f"the value has another form than `{row.path}`")


def find_row(table: Table, key: str) -> Row | None:  # None: the table has no such key
    """Return the row of a key: the row with this name, else the first row whose pattern matches."""
    patterns = (row for pattern, row in table.items() if "*" in pattern and fnmatchcase(key, pattern))
    return table.get(key) or next(patterns, None)


def lookup(names: Mapping[str, Any], reason: str) -> Callable[[Any], Any]:
    """Return a conversion that looks a name up in a table. Other names have no counterpart."""

    def convert(value: Any) -> Any:
        if str(value) not in names:
            raise NoCounterpartError(reason)
        return names[str(value)]

    return convert


def name_repository(value: Any) -> str:
    """Return the name of a repository of the hub; another value has no counterpart."""
    if not is_repository(value):
        raise NoCounterpartError("`checkpoint.initializeFrom.huggingFace` names a repository, or a folder in the pods")
    return str(value)


def to_share(value: Any) -> str | int:
    """Return a fraction of the steps as a share such as `1%`, and a number of steps unchanged."""
    if isinstance(value, int) or value > 1:
        return int(value)
    return f"{value * 100:g}%"


def set_wandb(draft: DraftJob, project: str, **options: Any) -> None:
    """Send the metrics to Weights & Biases, with an API key that users must put into a Secret."""
    secret = {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    present = {name: value for name, value in options.items() if value}
    draft.set_placeholder(
        "metrics.wandb", {"project": project, **present, "apiKey": secret}, "the Secret that holds the API key."
    )


def read_epochs(values: Values, key: str, steps_key: str, draft: DraftJob, *, default: int) -> None:
    """Set `training.epochs` of a source that ends at the lower of two limits, unless it writes the steps.

    The schedule keeps the length of the source's steps. `key` and `steps_key` are the keys of the source. `default` is
    its number of epochs without a meaning.
    """
    epochs = values.get(key)
    if epochs in (None, default):
        return
    if steps_key in values:
        reason = f"`{steps_key}` ends training: write `training.epochs` instead if the epochs have fewer steps"
        draft.omit(key, epochs, reason)
        return
    if draft.get("schedule.steps") is None:
        draft.set("schedule.steps", draft.get("training.steps"))
    del draft.spec["training"]["steps"]
    draft.set("training.epochs", epochs)
