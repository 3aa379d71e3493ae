"""Export of a saved step by one process without devices: each tensor is read and written before the next."""

import math
from collections.abc import Callable

import numpy as np

from trainingjob_api.huggingface.layout import Region
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_api.weights_exchange import ExchangeAnswer, ExchangeProgress, ExportReport, ExportRequest
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders
from trainingjob_trainer.checkpoint.initialize import find_intact_step
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

ALONE = ProcessGroup(0, 1)
NUM_REPORTS = 100
"""Reports of progress during an export."""


def export_checkpoint(request: ExportRequest, send: Callable[[ExchangeAnswer], None]) -> None:
    """Export a step of a checkpoint folder, and send the progress and the result.

    Raises:
        TrainingError: no step is intact, it holds another model, or the target cannot be written.
        ValueError: a file of the step is missing or damaged.
    """
    source = InitializeFrom(uri=request.source, step=request.step)
    folder, network = find_intact_step(source, ALONE), resolve_network(request.spec)
    saved = SavedParams(*find_array_folders(folder)[:2])
    check_shapes(saved, network, f"step {folder.step} of {request.source}")
    progress = _Progress(network.num_parameters, send)

    def gather(name: str, region: Region) -> np.ndarray:
        numbers = saved.read(name, region)
        progress.add(numbers.size)
        return numbers

    target = ExportTarget(open_store(request.target), request.dtype, request.max_file_bytes, request.adapter)
    exported = export_model(request.spec, gather, open_store(request.source), target, ALONE)
    report = ExportReport(step=folder.step, architecture=exported.architecture, num_files=exported.num_files)
    send(ExchangeAnswer(exported=report))


class _Progress:
    """The numbers that are exported so far, reported about a hundred times."""

    def __init__(self, total: int, send: Callable[[ExchangeAnswer], None]) -> None:
        self._total = total
        self._send = send
        self._done = 0

    def add(self, count: int) -> None:
        """Count numbers, and report if there are enough new ones."""
        before, self._done = self._done, self._done + count
        if before * NUM_REPORTS // self._total != self._done * NUM_REPORTS // self._total:
            self._send(ExchangeAnswer(progress=ExchangeProgress(done=self._done, total=self._total)))


def check_shapes(saved: SavedParams, network: Network, name: str) -> None:
    """Check that a step holds the parameters of a network.

    Raises:
        TrainingError: it lacks some, or they have other shapes.
    """
    for tensor in network.tensors:
        shape = saved.shape(tensor.name)
        if shape != tensor.shape:
            found = "missing" if shape is None else f"of {math.prod(shape):,} numbers"
            message = (
                f"{name} holds the parameters of another model: {tensor.name} is {found}, not of {tensor.size:,} "
                "numbers. The section model must be that of the job that saved the step."
            )
            raise TrainingError(FailureReason.CONFIG, message, path="spec.model")
