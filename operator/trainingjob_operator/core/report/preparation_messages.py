"""Messages about the preparation of the text."""

from trainingjob_api.data_report import PreparationProgress
from trainingjob_operator.core.units import format_count, format_duration, format_size


def describe_preparation(progress: PreparationProgress) -> str:
    """Return how much of the text is tokenized, how fast it goes, and when it is done."""
    done, total = format_size(progress.done_bytes), format_size(progress.total_bytes)
    parts = [
        f"tokenizing the text: {done} of {total} ({progress.ratio:.0%})",
        f"{format_count(progress.documents)} documents",
        f"{format_count(progress.tokens)} tokens",
    ]
    if progress.tokens_per_second is not None:
        parts.append(f"{format_count(progress.tokens_per_second)} tokens/s")
    if progress.eta_seconds is not None:
        parts.append(f"done in about {format_duration(progress.eta_seconds)}")
    return ", ".join(parts)
