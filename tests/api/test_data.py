"""The data section: which jobs mix weighted sources, and which isolate documents."""

from typing import Any

import pytest

from trainingjob_api.spec.data import Data, TextSource

WEB, CHAT = ({"name": name, "path": f"/{name}"} for name in ("web", "chat"))
DATA: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "plain sources": ({"train": [WEB, CHAT]}, False, False),
    "weights": ({"train": [WEB | {"weight": 0}, CHAT | {"weight": 1}]}, True, False),
    "a temperature": ({"train": [WEB, CHAT], "temperature": 2}, True, False),
    "a later phase": ({"train": [WEB], "weightSchedule": [{"fromStep": 9, "weights": {"web": 1}}]}, True, False),
    "concatenated documents": ({"train": [WEB], "packing": {"type": "concat"}}, False, False),
    "isolated documents": ({"train": [WEB], "packing": {"isolateDocuments": True}}, False, True),
    "best fit": ({"train": [WEB], "packing": {"type": "bestFit"}}, False, True),
}


@pytest.mark.parametrize(("section", "is_mixture", "isolates"), DATA.values(), ids=DATA)
def test_what_the_data_section_switches_on(section: dict[str, Any], is_mixture: bool, isolates: bool) -> None:
    data = Data.model_validate(section)

    assert (data.is_mixture, data.isolates_documents) == (is_mixture, isolates)


SOURCES: dict[str, tuple[dict[str, str], bool]] = {
    "text": ({}, False),
    "a conversation": ({"messages": "messages"}, True),
    "a completion": ({"prompt": "prompt", "completion": "completion"}, True),
    "a pair of answers": ({"chosen": "chosen", "rejected": "rejected"}, True),
}


@pytest.mark.parametrize(("fields", "has_answers"), SOURCES.values(), ids=SOURCES)
def test_records_with_answers(fields: dict[str, str], has_answers: bool) -> None:
    source = Data.model_validate({"train": [WEB | {"format": "jsonl"} | fields]}).train[0]

    assert source.has_answers is has_answers


@pytest.mark.parametrize(
    ("fields", "location", "field"),
    [
        ({"path": "/corpus"}, "/corpus", "path"),
        ({"huggingFace": {"repository": "org/stories"}}, "org/stories", "huggingFace.repository"),
        ({"format": "synthetic"}, "", "synthetic"),
    ],
)
def test_a_source_names_its_place(fields: dict[str, Any], location: str, field: str) -> None:
    source = TextSource(name="text", **fields)

    assert (source.location, source.location_field) == (location, field)


def test_phases_begin_with_step_one() -> None:
    later = [{"fromStep": step, "weights": {"web": 1}} for step in (9, 20)]

    assert Data.model_validate({"train": [WEB]}).phase_steps == (1,)
    assert Data.model_validate({"train": [WEB], "weightSchedule": later}).phase_steps == (1, 9, 20)
