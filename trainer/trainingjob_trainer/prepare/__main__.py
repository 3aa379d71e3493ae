"""Tokenize the text of a job for the command line: JSON on standard input, an answer a line on standard output."""

import sys
from pathlib import Path

from trainingjob_api.base import is_bucket
from trainingjob_api.prepare_exchange import PrepareAnswer, PrepareRequest
from trainingjob_trainer.data.token_cache import prepare_folder
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_output import open_answers
from trainingjob_trainer.store.opening import open_store


def main() -> None:
    """Answer the request."""
    send = open_answers()
    request = PrepareRequest.model_validate_json(sys.stdin.read())
    try:
        if not is_bucket(request.output):
            Path(request.output).mkdir(parents=True, exist_ok=True)
        store = open_store(request.output)
        found = prepare_folder(
            store,
            resolve_tokenizer(request.spec, store, is_leader=True),
            request.paths,
            lambda progress: send(PrepareAnswer(progress=progress)),
        )
    except TrainingError as error:
        send(PrepareAnswer(error=f"{error.path}: {error}" if error.path else str(error)))
    except OSError as error:
        send(PrepareAnswer(error=f"{request.output}: {error.strerror}"))
    else:
        send(PrepareAnswer(report=found.report))


if __name__ == "__main__":
    main()
