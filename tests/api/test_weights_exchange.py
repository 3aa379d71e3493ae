"""Requests and answers about weights: what one program writes, the other reads."""

import pytest
from pydantic import ValidationError

from trainingjob_api.weights_exchange import ExchangeAnswer, ExportReport, InspectRequest


def test_an_answer_is_read_as_it_was_written() -> None:
    answer = ExchangeAnswer(exported=ExportReport(step=1, architecture="LlamaForCausalLM", num_files=2))

    assert ExchangeAnswer.model_validate_json(answer.model_dump_json()) == answer


def test_a_request_of_another_version_is_refused() -> None:
    with pytest.raises(ValidationError):
        InspectRequest.model_validate({"kind": "inspect", "path": "/models", "newer": 1})
