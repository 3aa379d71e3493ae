"""`trainingjob plan --tensors`: the tensors of a job's model, by the names that patterns of the spec match."""

import json

from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.network.tensor import Tensor
from trainingjob_operator.cli.documents import read_one_job
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.validate_command import require_valid
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.units import format_count


def print_tensors(file: str, catalog: Catalog, *, as_json: bool) -> None:
    """Print the name, the shape and the size of each tensor of a file's TrainingJob, and whether it is trained.

    Raises:
        CommandError: the file does not hold exactly one TrainingJob, or it has problems.
    """
    plan, _ = require_valid(read_one_job(file), catalog)
    tensors = resolve_network(plan.spec).tensors
    if as_json:
        described = [
            {"name": one.name, "shape": list(one.shape), "axes": list(one.axes), "trained": one.is_trainable}
            for one in tensors
        ]
        echo(json.dumps(described, indent=2))
        return
    for line in align([("tensor", "shape", "parameters", "training"), *map(_row, tensors)], right=(2,)):
        echo(line)


def _row(tensor: Tensor) -> tuple[str, ...]:
    training = "trained" if tensor.is_trainable else "frozen"
    return tensor.name, " x ".join(map(str, tensor.shape)), format_count(tensor.size), training
