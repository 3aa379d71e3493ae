"""A token dataset: the files of one folder of the token cache, and the sequences that they hold.

`tokens.bin` holds the ids of all documents, concatenated. `index.json` is written last and makes the folder valid.
Without `Pieces`, sequence r of length L has tokens[r x L : r x L + L + 1]. Sequences overlap by one token: the last
that a sequence predicts is the first of the next. With isolated documents, and with pairs of answers, `pieces.bin` and
`rows.bin` hold `Pieces`. `token_weights.bin` holds the loss weight of each token, if they differ, and `token_bytes.bin`
the number of bytes of text of each id.

The number of an example is that of a sequence, or of a pair: sequences 2 p and 2 p + 1 are those of pair p.

Shapes: R sequences, L length. Of pairs, the sequences of an example have a dim between both: [examples, 2, L].
"""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from trainingjob_agent.shared_files import MAX_JSON_BYTES, UntrustedFileError, parse_untrusted_json
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.packing.pieces import Pieces, place_tokens
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sampler import sequences_of_samples
from trainingjob_trainer.data.stored_probabilities import StoredReader, StoredRows, hash_descriptions
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store

FOLDER = "data"
"""The folder of all token datasets, below the root of the checkpoint store."""
IDENTITY = re.compile(r"[0-9a-f]{64}")
SEEK_END = 2
"""The end of a file, as `os.SEEK_END`."""
PIECE_DTYPE = np.dtype(np.int64)
WEIGHT_DTYPE = np.dtype(np.uint8)
BYTES_DTYPE = np.dtype(np.uint32)


class Sequences(NamedTuple):
    """Some sequences of a dataset."""

    tokens: np.ndarray
    """Input tokens, int32 [R, L]."""
    targets: np.ndarray
    """The token to predict at each position, int32 [R, L]."""
    loss_weights: np.ndarray
    """Weight of each prediction in the loss, float32 [R, L]; 0 for padding."""
    segment_ids: np.ndarray | None = None
    """Document of each token, int32 [R, L], from 1; 0 for padding. None: documents are not isolated."""
    positions: np.ndarray | None = None
    """Position of each token in its document, int32 [R, L]. None: documents are not isolated."""
    stored: StoredRows | None = None
    """Stored probabilities of a teacher for each target. None: the job reads none."""


@dataclass(frozen=True)
class TokenDataset:
    """Tokenized text, open for reading. `dataset_hash` is the hash of all that decides its sequences."""

    dataset_hash: str
    tokens: np.ndarray
    sequence_length: int
    pieces: Pieces | None = None
    """The pieces of isolated documents. None: documents are not isolated."""
    token_weights: np.ndarray | None = None
    """Loss weight of each token as a target, uint8. None: 1."""
    folder: str = ""
    """The folder of its files, for messages."""
    token_bytes: np.ndarray | None = None
    """Bytes of text of each id, uint32 [number of ids]. None: unknown, because an older trainer wrote the dataset."""
    has_pairs: bool = False
    """Whether an example is two sequences, each with one document."""
    is_shuffled: bool = True
    """Whether the sequences of each epoch are permuted."""
    stored: StoredReader | None = None
    """Stored probabilities of a teacher for the sequences. None: the job reads none."""

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences of `sequence_length` predictions in the text, or of pairs of them."""
        if self.pieces is not None:
            return self.pieces.num_sequences // (2 if self.has_pairs else 1)
        return (len(self.tokens) - 1) // self.sequence_length

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    @property
    def is_isolated(self) -> bool:
        """Return whether tokens attend only to their own document."""
        return self.pieces is not None and not self.has_pairs

    def choose_sequences(self, samples: np.ndarray, seed: int, _history: SampleHistory) -> np.ndarray:
        """Return the sequence that each sample selects, int64 of the same shape."""
        return self.sequences_of_samples(samples, seed)

    def sequences_of_samples(self, samples: np.ndarray, seed: int, source: str = "") -> np.ndarray:
        """Return the sequence that each sample of the dataset selects, int64 of the same shape.

        `source` is the name of the dataset in a mixture.
        """
        if not self.is_shuffled:
            return samples.astype(np.int64) % self.num_sequences
        return sequences_of_samples(samples, self.num_sequences, seed, source)

    def in_order(self) -> "TokenDataset":
        """Return the dataset with its sequences in the order of the text, which is part of its hash."""
        dataset_hash = hashlib.sha256(f"{self.dataset_hash}, in the order of the text".encode()).hexdigest()
        return replace(self, dataset_hash=dataset_hash, is_shuffled=False)

    @property
    def per_token(self) -> int:
        """Return the stored probabilities of each token; 0 without any."""
        return self.stored.description.per_token if self.stored else 0

    @property
    def stored_hash(self) -> int:
        """Return a hash of the teacher of the stored probabilities; 0 without any."""
        return hash_descriptions([self.stored]) if self.stored else 0

    def sequences(self, numbers: np.ndarray) -> Sequences:
        """Return sequences, or pairs of them, by their numbers.

        Raises:
            TrainingError: the files of the dataset, or its stored probabilities, are damaged.
        """
        found = self._take(numbers.astype(np.int64))
        return found._replace(stored=self.stored.read(numbers)) if self.stored else found

    def _take(self, numbers: np.ndarray) -> Sequences:
        if self.pieces is not None and self.has_pairs:
            rows = self._isolated(self.pieces, np.stack([2 * numbers, 2 * numbers + 1], axis=1).reshape(-1))
            # Padding follows each answer, so that causal attention needs no segments.
            arrays = (rows.tokens, rows.targets, rows.loss_weights)
            tokens, targets, weights = (array.reshape(len(numbers), 2, -1) for array in arrays)
            return Sequences(tokens, targets, weights)
        return self._concatenated(numbers) if self.pieces is None else self._isolated(self.pieces, numbers)

    def _concatenated(self, numbers: np.ndarray) -> Sequences:
        places = numbers[:, None] * self.sequence_length + np.arange(self.sequence_length + 1)
        taken = self.tokens[places].astype(np.int32)
        return Sequences(taken[:, :-1], taken[:, 1:], self._weights(places[:, 1:]))

    def _isolated(self, pieces: Pieces, numbers: np.ndarray) -> Sequences:
        shape = len(numbers), self.sequence_length
        try:
            placed = place_tokens(pieces, numbers, self.sequence_length)
            values = self.tokens[placed.tokens], self.tokens[placed.tokens + 1]
            weights = self._weights(placed.tokens + 1)
        except (ValueError, IndexError) as error:
            raise TrainingError(
                FailureReason.STORAGE,
                f"the packing of a token dataset is damaged: {error}. Delete {self.folder}: the text is then tokenised "
                "again.",
                path="spec.checkpoint.uri",
                value=None,
            ) from error

        def spread(array: np.ndarray, dtype: type[Any]) -> np.ndarray:
            whole = np.zeros(shape, dtype)
            whole.reshape(-1)[placed.places] = array
            return whole

        tokens, targets = (spread(value, np.int32) for value in values)
        segments, positions = spread(placed.segments, np.int32), spread(placed.positions, np.int32)
        return Sequences(tokens, targets, spread(weights, np.float32), segments, positions)

    def count_bytes(self, tokens: np.ndarray) -> np.ndarray:
        """Return the bytes of text of tokens, int32 of the same shape; 0 if they are unknown."""
        if self.token_bytes is None:
            return np.zeros(tokens.shape, np.int32)
        found: np.ndarray = self.token_bytes[tokens].astype(np.int32)
        return found

    def _weights(self, places: np.ndarray) -> np.ndarray:
        """Return the loss weights of the tokens at some places, float32 of the same shape."""
        if self.token_weights is None:
            return np.ones(places.shape, np.float32)
        weights: np.ndarray = self.token_weights[places].astype(np.float32)
        return weights


def dataset_file(folder: str, name: str) -> str:
    """Return the name of a file of a dataset in the store."""
    return f"{FOLDER}/{folder}/{name}"


def description_name(folder: str) -> str:
    """Return the name of the file that describes a dataset, and that is written last."""
    return dataset_file(folder, "index.json")


def read_description(store: Store, folder: str) -> dict[str, Any]:
    """Return the content of index.json.

    Raises:
        UntrustedFileError: the file is not one that describes a dataset.
    """
    name = description_name(folder)
    match parse_untrusted_json(name, store.read(name, MAX_JSON_BYTES)):
        case {"dtype": "uint16" | "uint32", "numTokens": int(number), **others} as metadata if number > 0 and all(
            isinstance(others.get(key, kind()), kind) for key, kind in _OPTIONAL.items()
        ):
            return dict(metadata)
    raise UntrustedFileError(f"{name} describes no tokens")


_OPTIONAL: dict[str, type[Any]] = {
    "warnings": list,
    "rows": dict,
    "numPieces": int,
    "numRows": int,
    "hasWeights": bool,
    "numIds": int,
    "hasPairs": bool,
    "identity": str,
}
"""Types of the values that index.json may have."""


def open_dataset(store: Store, folder: str, sequence_length: int) -> TokenDataset:
    """Return a dataset of the store, its files mapped into memory.

    In datasets of older trainers, the name of the folder is the hash of the content.

    Raises:
        TrainingError: a file is cut off.
        UntrustedFileError: the folder does not hold a dataset.
    """
    description = read_description(store, folder)
    num_tokens, pieces, weights, token_bytes = description["numTokens"], None, None, None
    tokens = _map(store, folder, "tokens.bin", np.dtype(description["dtype"]), (num_tokens,))
    if description.get("numRows"):
        bounds = _map(store, folder, "pieces.bin", PIECE_DTYPE, (description.get("numPieces", 0), 2))
        pieces = Pieces(bounds, _map(store, folder, "rows.bin", PIECE_DTYPE, (description["numRows"] + 1,)))
    if description.get("hasWeights"):
        weights = _map(store, folder, "token_weights.bin", WEIGHT_DTYPE, (num_tokens,))
    if description.get("numIds"):
        token_bytes = _map(store, folder, "token_bytes.bin", BYTES_DTYPE, (description["numIds"],))
    return TokenDataset(
        description.get("identity", folder),
        tokens,
        sequence_length,
        pieces,
        weights,
        store.locate(f"{FOLDER}/{folder}"),
        token_bytes,
        has_pairs=description.get("hasPairs", False),
    )


def _map(store: Store, folder: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    expected_size = int(np.prod(shape)) * dtype.itemsize
    with store.open_local(dataset_file(folder, name)) as file:
        size = file.seek(0, SEEK_END)
        if size != expected_size:
            raise TrainingError(
                FailureReason.STORAGE,
                f"{store.locate(dataset_file(folder, name))} has {size} bytes and should have {expected_size}. Delete "
                f"{store.locate(f'{FOLDER}/{folder}')}: the text is then tokenised again.",
                path="spec.checkpoint.uri",
                value=store.root,
            )
        mapped: np.ndarray = np.memmap(file, dtype, mode="r", shape=shape)
        return mapped
