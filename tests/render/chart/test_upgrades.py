"""Upgrades with the values of an older chart: Helm's `--reuse-values` leaves out the values that are new."""

import re
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.chart_values import FREE_FORM

GUARD = '{{- include "trainingjob.validate" . -}}\n'
NEW_VALUES = ("metrics.tls", "metrics.authentication", "metrics.alerts", "metrics.dashboard", "nodeSignals")
"""What the chart has got since its first release."""
EMPTY: tuple[Any, ...] = ("", [], {})


@pytest.fixture
def old_values(chart) -> dict[str, Any]:
    """The values of the first release's chart."""
    values = read_values(chart)
    for path in NEW_VALUES:
        section, _, key = path.rpartition(".")
        del (values[section] if section else values)[key]
    return values


def read_values(chart: Any) -> dict[str, Any]:
    """Return the chart's defaults."""
    values: dict[str, Any] = yaml.safe_load((chart.folder / "values.yaml").read_text())
    return values


def copy_with_defaults(chart: Any, folder: Path, values: dict[str, Any]) -> Any:
    """Return a copy of the chart with other defaults: Helm renders this after `helm upgrade --reuse-values`."""
    shutil.copytree(chart.folder, folder)
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return replace(chart, folder=folder, rendered={})


def test_an_upgrade_with_reset_then_reuse_values_takes_new_defaults(chart, old_values) -> None:
    """Helm then renders the old values on top of the new defaults."""
    assert chart.template(old_values | {"crds": {"enabled": False}}) == chart.template({})


def test_an_upgrade_with_reuse_values_names_the_missing_values_and_the_flag(chart, old_values, tmp_path) -> None:
    done = copy_with_defaults(chart, tmp_path / "chart", old_values).run("template", {})

    assert done.returncode != 0
    assert "metrics.tls.enabled, metrics.tls.port, metrics.authentication.enabled, " in done.stderr
    assert "use `--reset-then-reuse-values` of Helm 3.14 or later" in done.stderr
    assert "nil pointer" not in done.stderr


def test_each_value_that_is_not_empty_and_each_section_is_required(chart, tmp_path) -> None:
    done = copy_with_defaults(chart, tmp_path / "chart", {}).run("template", {})
    found = re.search(r": ([\w., ]+): missing\.", done.stderr)
    assert found
    named = found[1].split(", ")

    values = read_values(chart)
    wanted = {path for path, value in leaves(values) if value not in EMPTY}
    sections = {key for key, value in values.items() if isinstance(value, dict) and value}
    assert wanted <= set(named)
    assert {path.partition(".")[0] for path in named} >= sections


def test_a_missing_value_whose_default_is_empty_counts_as_empty(chart) -> None:
    restricted: dict[str, Any] = {"networkPolicy": {"restrictEgress": True, "jobs": {"restrictEgress": True}}}
    values = deepcopy(restricted)
    for path, value in leaves(read_values(chart)):
        if value in EMPTY:
            *parents, last = path.split(".")
            section = values
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = None

    assert values["nodeSignals"] is None
    assert chart.template(values) == chart.template(restricted)


def leaves(values: dict[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the default of each value."""
    for key, value in values.items():
        path = f"{parent}{key}"
        if isinstance(value, dict) and value and path not in FREE_FORM:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def test_every_template_begins_with_the_check(chart) -> None:
    """Helm renders templates in no fixed order, and shows the first error."""
    templates = [path for path in (chart.folder / "templates").rglob("*") if path.suffix in (".yaml", ".txt")]

    assert len(templates) > 15
    assert [path.name for path in templates if not path.read_text().startswith(GUARD)] == []
