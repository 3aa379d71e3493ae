"""Store a teacher's probabilities for the command line: JSON on standard input, an answer a line on standard output."""

import sys
from pathlib import Path

from trainingjob_api.base import is_bucket
from trainingjob_api.prepare_exchange import TeachAnswer, TeachRequest
from trainingjob_trainer.data.mixture import Mixture, TrainingText
from trainingjob_trainer.data.stored_probabilities import Description
from trainingjob_trainer.data.token_cache import prepare_folder
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.runtime.process_output import Send, open_answers
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.teach.teacher_program import TeacherProgram
from trainingjob_trainer.teach.write_probabilities import write_dataset


def main() -> None:
    """Answer the request."""
    send = open_answers()
    request = TeachRequest.model_validate_json(sys.stdin.read())
    try:
        teach(request, send)
    except TrainingError as error:
        send(TeachAnswer(error=f"{error.path}: {error}" if error.path else str(error)))
    except OSError as error:
        send(TeachAnswer(error=str(storage_error(error, f"writing to {request.output}", request.output))))


def teach(request: TeachRequest, send: Send) -> None:
    """Tokenize the training text, and store the teacher's probabilities of it.

    Raises:
        TrainingError: the text, the teacher or the folder cannot be used.
        OSError: the folder cannot be written.
    """
    if not is_bucket(request.output):
        Path(request.output).mkdir(parents=True, exist_ok=True)
    store = open_store(request.output)
    in_order = request.spec.data.model_copy(update={"shuffle": True})  # the hash of the text alone
    spec = resolve_tokenizer(request.spec, store, is_leader=True).model_copy(
        update={"data": in_order, "evaluation": ()}
    )
    text = prepare_folder(store, spec, request.paths, lambda progress: send(TeachAnswer(tokenizing=progress))).train
    program = TeacherProgram(spec, request.per_token)
    done = 0
    for dataset in _list_datasets(text):
        description = Description(
            program.teacher_hash,
            spec.training.seed,
            request.per_token,
            spec.model.vocab_size,
            spec.training.sequence_length,
            dataset.num_sequences,
        )

        def report(added: int) -> None:
            nonlocal done
            done += added
            send(TeachAnswer(done_sequences=done, total_sequences=text.num_sequences))

        share = request.rank, request.count
        write_dataset(store, dataset, description, program.read, program.num_sequences, share, report)
    send(TeachAnswer(done_sequences=done, total_sequences=text.num_sequences, is_complete=True))


def _list_datasets(text: TrainingText) -> tuple[TokenDataset, ...]:
    return text.datasets if isinstance(text, Mixture) else (text,)


if __name__ == "__main__":
    main()
