"""The cache of a job's text samples on a device."""

from trainingjob_api.decoding import count_cache_bytes, find_decoding_shape
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.optim import FLOAT_BYTES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import SizePlan


def count_sample_bytes(spec: TrainingJobSpec, size: SizePlan) -> int:
    """Return the bytes of the cache on one device at a size; 0 if there are no samples, or the size is invalid."""
    decoding = find_decoding_shape(spec)
    if decoding is None or size.layout is None:
        return 0
    degrees = combine_degrees(size.layout.ici, size.layout.dcn)
    shard = Shard(decoding.length, FLOAT_BYTES[spec.precision.compute], degrees)
    return count_cache_bytes(resolve(spec.model), decoding, shard)
