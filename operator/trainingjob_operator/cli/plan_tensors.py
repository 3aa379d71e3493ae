"""`trainingjob plan --tensors`: the tensors of a job's model, by the names that patterns of the spec match."""

import json

from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.network.tensor import Tensor
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.validate_command import require_trainer_job
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.units import format_count


def print_tensors(file: str, catalog: Catalog, *, as_json: bool) -> None:
    """Print the name, the shape and the size of each tensor of a file's TrainingJob, and whether it is trained.

    With quantization, also the format of its matmuls.

    Raises:
        CommandError: the file does not hold exactly one TrainingJob, or it has problems.
    """
    plan, _ = require_trainer_job(read_single_job(file), "plan --tensors", catalog)
    network, precision = resolve_network(plan.spec), plan.spec.precision
    formats: dict[str, str] = {tensor.name: precision.compute for tensor in network.tensors if tensor.is_matrix}
    if precision.quantization:
        formats |= dict.fromkeys(network.quantized, precision.quantization.type)
    if as_json:
        objects = [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "axes": list(tensor.axes),
                "trained": tensor.is_trainable,
                "matmul": formats.get(tensor.name),
            }
            for tensor in network.tensors
        ]
        echo(json.dumps(objects, indent=2))
        return
    headings: tuple[str, ...] = ("tensor", "shape", "parameters", "training")
    rows = [_row(tensor) for tensor in network.tensors]
    if precision.quantization:
        headings = (*headings, "matmul")
        rows = [(*row, formats.get(tensor.name, "")) for row, tensor in zip(rows, network.tensors, strict=True)]
    for line in align([headings, *rows], right=(2,)):
        echo(line)


def _row(tensor: Tensor) -> tuple[str, ...]:
    training = "trained" if tensor.is_trainable else "frozen"
    return tensor.name, " x ".join(map(str, tensor.shape)), format_count(tensor.size), training
