"""Answer one request of the command line: JSON on standard input, an answer a line on standard output."""

import sys

from pydantic import Field, RootModel

from trainingjob_api.huggingface.config_fields import ConfigError
from trainingjob_api.weights_exchange import (
    EvaluateRequest,
    ExchangeAnswer,
    ExportRequest,
    InspectRequest,
    SampleRequest,
)
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_output import open_answers
from trainingjob_trainer.weights_exchange.evaluate_text import evaluate_text
from trainingjob_trainer.weights_exchange.export_checkpoint import export_checkpoint
from trainingjob_trainer.weights_exchange.inspect_weights import inspect_weights
from trainingjob_trainer.weights_exchange.sample_text import sample_text


class Request(RootModel[InspectRequest | ExportRequest | SampleRequest | EvaluateRequest]):
    """A request, by its `kind`."""

    root: InspectRequest | ExportRequest | SampleRequest | EvaluateRequest = Field(discriminator="kind")


def main() -> None:
    """Answer the request."""
    send = open_answers()
    request = Request.model_validate_json(sys.stdin.read()).root
    try:
        if isinstance(request, InspectRequest):
            send(ExchangeAnswer(report=inspect_weights(request.path)))
        elif isinstance(request, SampleRequest):
            sample_text(request, send)
        elif isinstance(request, EvaluateRequest):
            evaluate_text(request, send)
        else:
            export_checkpoint(request, send)
    except (ConfigError, WeightsError, TrainingError) as error:
        send(ExchangeAnswer(error=str(error)))
    except OSError as error:
        send(ExchangeAnswer(error=f"{error.filename or ''}: {error.strerror}".removeprefix(": ")))


if __name__ == "__main__":
    main()
