"""Data report of a job: what was read and skipped per source, and warnings about the text."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pydantic import Field, TypeAdapter

from trainingjob_api.base import Open
from trainingjob_api.data_report import MAX_EXAMPLE, MAX_WARNING, DataReport, Skipped, SkipReason, SourceReport
from trainingjob_api.formats import find_records
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.mixture import Mixture, TrainingText
from trainingjob_trainer.data.preparation.file_account import FileAccount
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sources.source_files import (
    MAX_NAMED,
    SourceFile,
    SourceFiles,
    count_skipped,
    plural,
    printable,
)
from trainingjob_trainer.data.training_length import TrainingLength, find_training_length
from trainingjob_trainer.runtime.errors import shorten

LOG = logging.getLogger(__name__)
MAX_EPOCHS_WITHOUT_WARNING = 4
"""Epochs up to which repeated text is worth about as much as new text."""
MIN_SHARE_WITHOUT_WARNING = 0.5
"""Epochs of a source, as a share of those of the source that ends an epoch of the mixture."""
MAX_REPORT_BYTES = 24_000
"""Maximum size of a report: it is part of each heartbeat of one host, and of the job's status."""
MAX_WARNINGS = 12
UNEXPECTED_SKIPS = {
    SkipReason.BROKEN_LINK: "links whose target does not exist",
    SkipReason.DUPLICATE: "files or folders that were reached by another name too",
}
"""Skipped files that a user does not expect to be skipped, as text for warnings."""


class DatasetReport(Open):
    """Report of one token dataset: of the training text, or of one held-out text."""

    sources: tuple[SourceReport, ...]
    warnings: tuple[str, ...] = ()
    files: dict[str, str] = Field(default={})
    """Maps the hash of each file to one file with that content; dropped once all texts are compared."""


def describe_dataset(
    found: Sequence[tuple[TextSource, SourceFiles]],
    files: Sequence[tuple[SourceFile, FileAccount]],
    rows: Mapping[str, int],
    warnings: Iterable[str],
) -> DatasetReport:
    """Return the report of a token dataset. `rows` are the sequences that begin in each source."""
    return DatasetReport(
        sources=tuple(
            _describe_source(source, source_files, files, rows.get(source.name)) for source, source_files in found
        ),
        warnings=(*_file_warnings(found, files), *warnings),
        files={hashed.sha256: f"{file.source.name}: {printable(file.name)}" for file, hashed in files if hashed.size},
    )


def _describe_source(
    source: TextSource, found: SourceFiles, files: Sequence[tuple[SourceFile, FileAccount]], rows: int | None
) -> SourceReport:
    source_accounts = [(file, account) for file, account in files if file.source.name == source.name]
    skipped = [
        (reason, file.name)
        for file, account in source_accounts
        for reason, count in ((SkipReason.EMPTY, account.empty), (SkipReason.BAD_RECORD, account.bad))
        for _ in range(count)
    ]
    return SourceReport(
        name=source.name,
        files=len(source_accounts),
        documents=sum(account.documents for _, account in source_accounts),
        characters=sum(account.characters for _, account in source_accounts),
        tokens=sum(account.tokens for _, account in source_accounts),
        rows=rows,
        commit=source.hugging_face.revision if source.hugging_face else None,
        skipped=(*found.skipped, *count_skipped(skipped)),
    )


def _file_warnings(
    found: Sequence[tuple[TextSource, SourceFiles]], files: Sequence[tuple[SourceFile, FileAccount]]
) -> list[str]:
    """Return warnings about the files of a token dataset."""
    warnings = []
    for source, source_files in found:
        warnings += _bad_record_warnings(source, [row for row in files if row[0].source.name == source.name])
        if source_files.unused:
            warnings.append(f"source {source.name}: its path is a file, so {source_files.unused} has no effect.")
        warnings += [
            f"source {source.name}: {_skip_warning(skip)}."
            for skip in source_files.skipped
            if skip.reason in UNEXPECTED_SKIPS
        ]
        kinds = Counter(filter(None, (find_records(file.name, source.format) for file in source_files.files)))
        warnings += [
            f"source {source.name}: {plural(count, f'{kind} file')} read as they are, with keys, quotes and separators."
            for kind, count in kinds.items()
        ]
    reals = Counter(file.real for file, _ in files)
    texts = Counter(hashed.sha256 for _, hashed in files if hashed.size)
    duplicates = sum(count - 1 for count in reals.values())
    copies = sum(count - 1 for count in texts.values()) - duplicates
    if duplicates > 0:
        warnings.append(f"{plural(duplicates, 'file')} of more than one source: that text is trained on more often.")
    if copies > 0:
        warnings.append(f"{plural(copies, 'file')} with the same text as another one: each is read.")
    return warnings


def _bad_record_warnings(source: TextSource, files: Sequence[tuple[SourceFile, FileAccount]]) -> list[str]:
    """Return a warning with the number of bad records of a source, of some files, and what is wrong with the first."""
    bad = [(file, account) for file, account in files if account.bad]
    if not bad:
        return []
    counts = [f"{account.bad:,} in {printable(file.name)[:MAX_EXAMPLE]}" for file, account in bad[:MAX_NAMED]]
    more = f" and {plural(len(bad) - MAX_NAMED, 'more file')}" if len(bad) > MAX_NAMED else ""
    total = plural(sum(account.bad for _, account in bad), "bad record")
    return [f"source {source.name}: skipped {total}: {', '.join(counts)}{more}. The first: {bad[0][1].first_bad}"]


def _skip_warning(skip: Skipped) -> str:
    return f"skipped {skip.count:,} {UNEXPECTED_SKIPS[SkipReason(skip.reason)]} ({skip.example})"


def dump_reports(texts: Sequence[DatasetReport]) -> str:
    """Return the reports of a job's texts as JSON, the training text first."""
    train, *held_out = texts
    shared: list[str] = []
    for text in held_out:
        both = sorted(text.files.keys() & train.files.keys())
        if both:
            name = text.sources[0].name
            shared.append(
                f"evaluation {name}: {plural(len(both), 'document')} of {len(text.files):,} is trained on too "
                f"({train.files[both[0]]}): the loss on it says little."
            )
    kept = [text.model_copy(update={"files": {}}) for text in texts]
    kept[0] = kept[0].model_copy(update={"warnings": (*train.warnings, *shared)})
    return _TEXTS.dump_json(kept, exclude_defaults=True).decode()


_TEXTS = TypeAdapter(list[DatasetReport])


def load_reports(written: str) -> list[DatasetReport]:
    """Return the reports that `dump_reports` wrote; empty if they cannot be read."""
    try:
        return _TEXTS.validate_json(written)
    except ValueError:
        LOG.warning("the account of the text cannot be read, and is not reported")
        return []


def merge_reports(texts: Mapping[str, DatasetReport], spec: TrainingJobSpec) -> list[DatasetReport]:
    """Return one report for the training text, and one for each evaluation. `texts` has them by dataset."""
    held_out = [texts[evaluation.name] for evaluation in spec.evaluation]
    train = list(texts.values())[: len(texts) - len(held_out)]
    merged = DatasetReport(
        sources=tuple(source for text in train for source in text.sources),
        warnings=tuple(warning for text in train for warning in text.warnings),
        files={sha256: file for text in train for sha256, file in text.files.items()},
    )
    return [merged, *held_out]


def build_data_report(
    texts: Sequence[DatasetReport], train: TrainingText, rows: Mapping[str, int], spec: TrainingJobSpec
) -> DataReport:
    """Return the report that hosts send. `rows` maps each evaluation to its sequence count."""
    sizes, num_rows = spec.training.batch_sizes, train.num_sequences
    length = find_training_length(train, spec.training, sizes)
    epochs, by_source = round(length.samples / num_rows, 3), dict[str, float]()
    if isinstance(train, Mixture):
        samples = train.count_by_source(length.samples, SampleHistory(sizes))
        lengths = {name: dataset.num_sequences for name, dataset in zip(train.names, train.datasets, strict=True)}
        by_source = {name: round(count / lengths[name], 3) for name, count in samples.items()}
    read = _ReadText(num_rows, length, epochs, by_source)
    warnings = [*_length_warnings(read, rows, spec), *(warning for text in texts for warning in text.warnings)]
    sources = [
        source.model_copy(update={"evaluation": True} if number else {"epochs": by_source.get(source.name, epochs)})
        for number, text in enumerate(texts)
        for source in text.sources
    ]
    report = DataReport(
        tokens=train.num_tokens,
        rows=num_rows,
        epochs=epochs,
        sources=tuple(sources),
        warnings=tuple(shorten(warning, MAX_WARNING) for warning in warnings[:MAX_WARNINGS]),
    )
    if len(report.model_dump_json()) > MAX_REPORT_BYTES:
        bare = tuple(source.model_copy(update={"skipped": ()}) for source in report.sources)
        report = report.model_copy(update={"sources": bare})
    return report


class _ReadText(NamedTuple):
    """How much the job reads of the training text. `by_source` has the epochs of each source of a mixture."""

    num_rows: int
    length: TrainingLength
    epochs: float
    by_source: Mapping[str, float]


def _length_warnings(read: _ReadText, held_out: Mapping[str, int], spec: TrainingJobSpec) -> list[str]:
    """Return warnings about texts that are short for what the job does with them.

    `held_out` has the sequences of each evaluation.
    """
    batch, steps = spec.training.largest_batch, plural(read.length.steps, "step")
    length = f"{plural(read.num_rows, 'row')} of text; a batch takes {batch:,}: {read.epochs:,.1f} epochs over {steps}"
    warnings = []
    if read.num_rows < batch and read.length.samples <= read.num_rows:
        warnings.append(f"{length}. The rest of its only batch is padding. Add text, or train on smaller batches.")
    elif read.num_rows < batch:
        warnings.append(f"{length}. A batch holds the same row more than once. Add text.")
    elif spec.training.epochs is not None:  # the user has chosen how often the text is repeated
        warnings += _unread_source_warnings(read.by_source)
    elif read.by_source:
        warnings += [
            f"source {name}: {count:,.1f} epochs over {steps}. Add text, or lower its weight."
            for name, count in read.by_source.items()
            if count > MAX_EPOCHS_WITHOUT_WARNING
        ]
    elif read.epochs > MAX_EPOCHS_WITHOUT_WARNING:
        warnings.append(
            f"{length}. Each row is trained on about {read.epochs:,.0f} times. Add text, or train fewer steps."
        )
    warnings += [
        f"evaluation {name}: {plural(count, 'row')} of text; a batch takes {batch:,}. The loss is that of few tokens."
        for name, count in held_out.items()
        if count < batch
    ]
    return warnings


def _unread_source_warnings(by_source: Mapping[str, float]) -> list[str]:
    """Return warnings about sources of which a mixture reads little before another one ends its epochs."""
    if not by_source:
        return []
    first = max(by_source, key=lambda name: by_source[name])
    return [
        f"source {name}: {count:,.2f} epochs, because spec.training.epochs counts those of {first}, which is read "
        f"completely first ({by_source[first]:,.2f}). Raise its weight, or set spec.training.steps."
        for name, count in by_source.items()
        if 0 < count < by_source[first] * MIN_SHARE_WITHOUT_WARNING
    ]


def log_report(report: DataReport) -> None:
    """Log what was read and skipped."""
    for source in report.sources:
        skipped = ", ".join(f"{skip.count} {skip.reason} ({skip.example})" for skip in source.skipped)
        LOG.info(
            "text %s=%s files=%d documents=%d characters=%d tokens=%s rows=%s epochs=%s skipped=%s%s",
            "evaluation" if source.evaluation else "source",
            source.name,
            source.files,
            source.documents,
            source.characters,
            source.tokens,
            source.rows,
            source.epochs,
            skipped or "nothing",
            f" commit={source.commit}" if source.commit else "",
        )
    LOG.info("training text tokens=%d rows=%d epochs=%.3f", report.tokens, report.rows, report.epochs)
    for warning in report.warnings:
        LOG.warning("%s", warning)
