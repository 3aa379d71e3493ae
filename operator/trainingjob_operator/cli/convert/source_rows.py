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
    """A key whose value a field has too."""

    path: str
    convert: Callable[[Any], Any] = _copy
    """Returns our value. It raises `NoCounterpartError` for one that no field expresses."""
    off: tuple[Any, ...] = ()
    """Values by which the source switches the option off, as an omitted field does here."""


@dataclass(frozen=True)
class Part:
    """A key that is read together with others."""


@dataclass(frozen=True)
class Ask:
    """A key that names what users must fill in, unless its value is a URI of a bucket."""

    path: str
    example: Any
    text: str
    in_bucket: Callable[[Any, DraftJob], Any] | None = None  # None: users fill it in
    """Returns the value of the field for a source in a bucket; None: it is none, and users fill it in."""


@dataclass(frozen=True)
class Left:
    """A key without a counterpart."""

    reason: str
    off: tuple[Any, ...] = ()
    """Values that need no mention, because the job behaves like that."""


type Row = Copy | Part | Ask | Left
type Table = Mapping[str, Row]
"""Rows by key. A key with `*` stands for several."""


def apply_rows(table: Table, values: Values, draft: DraftJob) -> None:
    """Put all values of a source into a job, or among what is left out."""
    for key, value in values.items():
        row = find_row(table, key)
        if isinstance(row, Copy) and value not in row.off:
            _copy_value(row, key, value, draft)
        elif isinstance(row, Ask) and value not in (None, "", []) and not _use_uri(row, value, draft):
            draft.ask(row.path, row.example, f"{row.text} The source has `{key}: {value}`.")
        elif isinstance(row, Left) and value not in row.off:
            draft.leave(key, value, row.reason)
        elif row is None:
            draft.leave(key, value, UNKNOWN)


def _use_uri(row: Ask, value: Any, draft: DraftJob) -> bool:
    """Set the field of a row, if the value is in a bucket that a job can read; return whether it is set."""
    found = row.in_bucket(value, draft) if row.in_bucket and draft.get(row.path) is None else None
    if found is not None:
        draft.set(row.path, found)
    return found is not None


def _copy_value(row: Copy, key: str, value: Any, draft: DraftJob) -> None:
    try:
        draft.set(row.path, row.convert(value))
    except NoCounterpartError as error:
        draft.leave(key, value, str(error))
    except (TypeError, ValueError):
        draft.leave(key, value, f"the value has another form than `{row.path}`")


def find_row(table: Table, key: str) -> Row | None:  # None: the table has no such key
    """Return the row of a key: the one of this name, else the first whose pattern matches."""
    patterns = (row for pattern, row in table.items() if "*" in pattern and fnmatchcase(key, pattern))
    return table.get(key) or next(patterns, None)


def one_of(names: Mapping[str, Any], reason: str) -> Callable[[Any], Any]:
    """Return a conversion by a table of names; another name has no counterpart."""

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
    """Return a fraction of the steps as a share such as `1%`, and a number of steps as it is."""
    if isinstance(value, int) or value > 1:
        return int(value)
    return f"{value * 100:g}%"


def ask_for_wandb(draft: DraftJob, project: str, **options: Any) -> None:
    """Send the metrics to Weights & Biases, with an API key that users must put into a Secret."""
    secret = {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    given = {name: value for name, value in options.items() if value}
    draft.ask("metrics.wandb", {"project": project, **given, "apiKey": secret}, "the Secret that holds the API key.")


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
        draft.leave(key, epochs, reason)
        return
    if draft.get("schedule.steps") is None:
        draft.set("schedule.steps", draft.get("training.steps"))
    del draft.spec["training"]["steps"]
    draft.set("training.epochs", epochs)
