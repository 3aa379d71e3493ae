"""Requests to tokenize a text, and their answers, as JSON between the command line and the trainer."""

from tests.support.builders import spec_manifest
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.prepare_exchange import PrepareAnswer, PrepareRequest
from trainingjob_api.spec.job import TrainingJobSpec


def test_a_request_and_an_answer_survive_as_json() -> None:
    spec = TrainingJobSpec.model_validate(spec_manifest())
    request = PrepareRequest(spec=spec, output="/tokens", paths={"spec.data.train[0]": "/shared/text"})
    answer = PrepareAnswer(progress=PreparationProgress(done_bytes=1, total_bytes=2))

    assert PrepareRequest.model_validate_json(request.model_dump_json()) == request
    assert PrepareAnswer.model_validate_json(answer.model_dump_json()) == answer
