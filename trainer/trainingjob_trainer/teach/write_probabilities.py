"""Write the stored probabilities of a token dataset in parts. Parts that exist are not written again.

Part p is that of process p modulo their number. The leading process then takes the parts that others have not written
yet, so that it depends on none of them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from trainingjob_agent.shared_files import UntrustedFileError
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.stored_probabilities import (
    Description,
    StoredRows,
    find_folder,
    part_name,
    read_index,
    write_index,
)
from trainingjob_trainer.data.token_dataset import Sequences, TokenDataset
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store, has_object

type ReadTeacher = Callable[[Sequences, np.ndarray], StoredRows]
"""Returns the probabilities of sequences, whose numbers are the second argument."""
type ReportSequences = Callable[[int], None]
"""Receives the number of sequences that have become complete."""


def write_dataset(
    store: Store,
    dataset: TokenDataset,
    description: Description,
    read: ReadTeacher,
    num_sequences: int,
    share: tuple[int, int] = (0, 1),
    report: ReportSequences = lambda _: None,
) -> None:
    """Write the parts of a dataset that are missing; the leading process also writes the description.

    `read` takes `num_sequences` sequences at once. `share` is the number of this process, and that of all.

    Raises:
        TrainingError: the folder has the probabilities of another teacher.
    """
    folder = find_folder(dataset.dataset_hash)
    _check_teacher(store, folder, description)
    for part in _choose_parts(description.num_parts, share):
        numbers = description.sequences_of_part(part)
        if not has_object(store, part_name(folder, part)):
            store.write(part_name(folder, part), _read_records(dataset, numbers, description, read, num_sequences))
        report(len(numbers))
    if share[0] == 0:
        write_index(store, folder, description)


def _check_teacher(store: Store, folder: str, description: Description) -> None:
    """Write what the parts of a folder belong to; raise TrainingError if they belong to something else."""
    claim = f"{folder}/claim"
    try:
        found = read_index(store, claim)
        if found is None:
            write_index(store, claim, description)
    except UntrustedFileError:
        found = None
    if found not in (None, description):
        raise TrainingError(
            FailureReason.CONFIG,
            f"{store.locate(folder)} has the probabilities of another teacher, seed or number per token. Write to "
            "another folder, or delete this one.",
        )


def _choose_parts(num_parts: int, share: tuple[int, int]) -> Iterator[int]:
    """Yield the parts of a process, and for the leading one then those of the others, the last one first."""
    rank, count = share
    own = range(rank, num_parts, count)
    yield from own
    if rank == 0:
        yield from (part for part in reversed(range(num_parts)) if part not in own)


def _read_records(
    dataset: TokenDataset, numbers: range, description: Description, read: ReadTeacher, num_sequences: int
) -> Iterator[bytes]:
    """Yield the records of a part. The last call reads sequences twice, so that all calls have one shape."""
    for first in range(0, len(numbers), num_sequences):
        selected = np.array(numbers[first : first + num_sequences])
        padded = np.pad(selected, (0, num_sequences - len(selected)), mode="edge")
        found = read(dataset.sequences(padded), padded)
        records = np.empty((len(selected), description.sequence_length), description.record)
        for name, array in found._asdict().items():
            records[name] = array[: len(selected)]
        yield records.tobytes()
