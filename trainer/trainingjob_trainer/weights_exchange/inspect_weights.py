"""A report about a folder of published weights, from its configuration and the headers of its files."""

from trainingjob_api.huggingface.registry import find_family, read_config
from trainingjob_api.network.resolve import resolve
from trainingjob_api.weights_exchange import WeightsReport
from trainingjob_trainer.huggingface.import_weights import add_prefix, match_tensors
from trainingjob_trainer.huggingface.published_params import read_model
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.store.opening import open_store


def inspect_weights(path: str) -> WeightsReport:
    """Return the model of a folder, and how its tensors fit.

    Raises:
        ConfigError: no model section expresses the configuration.
        WeightsError: a file is missing or damaged.
        OSError: the folder cannot be read.
    """
    weights = open_weights(open_store(path))
    network = resolve(read_model(weights))
    family = find_family(weights.config)
    weights = add_prefix(weights, family.optional_prefix)
    match = match_tensors(weights, family.bind(network), family.derived)
    return WeightsReport(
        model_type=family.model_type,
        section=read_config(weights.config),
        num_parameters=network.num_parameters,
        num_bytes=sum(entry.num_bytes for entry in weights.tensors.values()),
        matched=match.matched,
        missing=match.missing,
        unused=match.unused,
        misfits=match.misfits,
    )
