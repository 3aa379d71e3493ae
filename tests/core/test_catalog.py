"""The catalog of a cluster, and how another process gets it."""

from dataclasses import replace

from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.core.catalog import BUILTIN, AddedRows, Catalog


def test_another_process_gets_the_same_catalog() -> None:
    own = replace(PRESETS["gpt2"], name="team-tiny")
    h100 = BUILTIN.hardware.accelerators_by_name["nvidia-h100"]
    hardware = BUILTIN.hardware.with_rows([replace(h100, name="lab-gpu")])
    catalog = Catalog(hardware, {**PRESETS, own.name: own})

    assert catalog.added.presets == (own,)
    assert catalog.added.add().presets == catalog.presets
    assert catalog.added.add().hardware.accelerators_by_name == hardware.accelerators_by_name
    assert AddedRows().add().presets == PRESETS
