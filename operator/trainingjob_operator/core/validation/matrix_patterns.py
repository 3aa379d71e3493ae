"""The check of lists of patterns that choose among the matrices of a network, for several sections."""

from collections.abc import Iterator, Sequence

from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.network.tensor_names import any_group, nearest_patterns
from trainingjob_api.problem import Problem, as_text
from trainingjob_operator.core.planner.problem_messages import join_words
from trainingjob_operator.core.validation.rule import find_repeated


def find_unmatched(
    path: str, patterns: Sequence[str], network: Network, matrices: Sequence[Tensor], others: str
) -> Iterator[Problem]:
    """Yield a problem for each pattern at a path that another equals, or that matches none of the matrices.

    `others` describes a tensor that is none of them, such as `is never quantized`.
    """
    legal = [tensor.name for tensor in matrices]
    yield from find_repeated(path, patterns)
    for number, pattern in enumerate(patterns):
        if any(matches_any(name, (pattern,)) for name in legal):
            continue
        found = next((tensor.name for tensor in network.tensors if matches_any(tensor.name, (pattern,))), None)
        reason = f"{pattern} matches {found}, which {others}" if found else f"{pattern} matches no tensor"
        choices = join_words(dict.fromkeys(map(any_group, legal)))
        message = f"{reason}. It must match a matrix of the layers: {choices}."
        yield Problem(f"{path}[{number}]", pattern, message, tuple(map(as_text, nearest_patterns(pattern, legal))))
