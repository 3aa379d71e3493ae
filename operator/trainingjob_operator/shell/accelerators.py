"""Accelerator rows of an administrator, which add to the built-in hardware table or override its rows.

A file maps accelerator names to rows. The Helm chart writes it from the value `accelerators`, and the command line
accepts the same file. The operator skips and reports invalid rows, and uses all others.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from trainingjob_api.base import Label, LabelKey, Quantity, Strict
from trainingjob_operator.core.planner.hardware import CPU, Accelerator, Hardware, SliceTopology, parse_dims
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Rates
from trainingjob_operator.core.validation.quantity import parse_bytes
from trainingjob_operator.shell.added_values import InvalidRow, Table, check_rows, describe_error, read_rows

TABLE: Table = "accelerators"
MAX_NAME = 63
_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Topology = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){0,2}$")]
Resource = Annotated[
    str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]


class SliceRow(Strict):
    """One slice shape of an accelerator; its key is the topology."""

    hosts: Annotated[int, Field(ge=1, le=4096)] = 1
    wraps: tuple[bool, ...] = ()


class RatesRow(Strict):
    """Peak rates of one device; `core.planner.plan.Rates` documents the fields. 0: unknown."""

    bfloat16: Rate = 0
    float8: Rate = 0
    int8: Rate = 0
    float32: Rate = 0
    memory: Rate = 0
    link: Rate = 0
    num_links: Rate = 0
    network: Rate = 0
    host: Rate = 0


def _stringify_keys(value: Any) -> Any:
    """Convert the keys of a map to strings: YAML parses the topology `8` as a number."""
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else value


class AcceleratorRow(Strict):
    """One accelerator; `core.planner.hardware.Accelerator` documents the fields."""

    platform: Literal["tpu", "cuda"]
    resource: Resource
    topologies: Annotated[
        dict[Topology, SliceRow], Field(min_length=1, max_length=1024), BeforeValidator(_stringify_keys)
    ]
    memory: Quantity = "0"
    host_memory: Quantity = "0"
    node_labels: dict[LabelKey, Label] = Field(default_factory=dict)
    topology_label: LabelKey | Literal[""] = ""
    exclusive_topology: LabelKey | Literal[""] = ""
    taints: tuple[LabelKey, ...] = ()
    devices_per_chip: Annotated[int, Field(ge=1, le=16)] = 1
    rates: RatesRow = RatesRow()
    source: Annotated[str, Field(max_length=256)] = ""


@dataclass(frozen=True)
class HardwareTable:
    """The resulting hardware table, and the rows that it does not include."""

    hardware: Hardware = BUILTIN
    invalid_rows: tuple[InvalidRow, ...] = ()


def load_accelerators(path: Path | None) -> HardwareTable:  # None: only built-in rows
    """Return the built-in table with a file's rows. An invalid file is reported and raises nothing."""
    return _add_rows(read_rows(TABLE, path)) if path else HardwareTable()


def read_accelerators(content: Any) -> HardwareTable:
    """Return the built-in table with the rows of a map from names to rows."""
    return _add_rows(check_rows(TABLE, content))


def _add_rows(added: dict[str, Any] | InvalidRow) -> HardwareTable:
    if isinstance(added, InvalidRow):
        return HardwareTable(invalid_rows=(added,))
    results = [_read_row(name, raw) for name, raw in added.items()]
    rows = [row for row in results if not isinstance(row, InvalidRow)]
    return HardwareTable(BUILTIN.with_rows(rows), tuple(row for row in results if isinstance(row, InvalidRow)))


def _read_row(name: str, raw: Any) -> Accelerator | InvalidRow:
    if not _NAME.match(name) or len(name) > MAX_NAME:
        return InvalidRow(TABLE, name, f"the name must be at most {MAX_NAME} lower-case letters, digits and '-'.")
    if name == CPU:
        return InvalidRow(TABLE, name, "must not be the name of the built-in accelerator. Choose another name.")
    try:
        row = AcceleratorRow.model_validate(raw, by_name=False, by_alias=True)
    except ValidationError as error:
        return InvalidRow(TABLE, name, describe_error(error))
    problems = [
        problem for topology, slice_row in row.topologies.items() for problem in _check_slice(topology, slice_row)
    ]
    return InvalidRow(TABLE, name, " ".join(problems)) if problems else _accelerator(name, row)


def _check_slice(topology: str, slice_row: SliceRow) -> Iterator[str]:
    dims = parse_dims(topology)
    if math.prod(dims) % slice_row.hosts:
        yield f"topologies.{topology}.hosts: {slice_row.hosts} must divide its {math.prod(dims)} chips."
    if slice_row.wraps and len(slice_row.wraps) != len(dims):
        yield f"topologies.{topology}.wraps: must have {len(dims)} values, not {len(slice_row.wraps)}."


def _accelerator(name: str, row: AcceleratorRow) -> Accelerator:
    return Accelerator(
        name=name,
        platform=row.platform,
        resource=row.resource,
        slices=tuple(
            SliceTopology(topology, slice_row.hosts, slice_row.wraps) for topology, slice_row in row.topologies.items()
        ),
        memory_bytes=parse_bytes(row.memory),
        node_labels=tuple(row.node_labels.items()),
        topology_label=row.topology_label,
        exclusive_topology=row.exclusive_topology,
        taints=row.taints,
        devices_per_chip=row.devices_per_chip,
        host_memory_per_chip=parse_bytes(row.host_memory),
        rates=Rates(**row.rates.model_dump()),
        source=row.source,
    )
