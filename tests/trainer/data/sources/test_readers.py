"""Readers of the data formats: each format of the table has one."""

import inspect
import pkgutil

import pytest

from trainingjob_api.formats import FORMATS, FormatName
from trainingjob_trainer.data.sources import readers


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_a_reader(name: FormatName) -> None:
    read = readers.load_reader(name).read_documents

    assert list(inspect.signature(read).parameters) == ["file"]


def test_each_reader_is_a_format() -> None:
    assert {module.name for module in pkgutil.iter_modules(readers.__path__)} == {
        readers.module_name(name) for name in FORMATS
    }
