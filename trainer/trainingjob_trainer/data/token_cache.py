"""Token cache: the text of a job is tokenized once, into a folder named by the hash of all that decides its sequences.

`<uri>/data/<job's uid>-<hash of the data sections>.json` names the token datasets of a job. With it, a restart does not
read the text again, and a change of the text under a running job has no effect. `.account.json` in the same folder
holds what was read and skipped, so that a restart reports it too.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from trainingjob_agent.shared_files import MAX_JSON_BYTES, UntrustedFileError, parse_untrusted_json
from trainingjob_api.data_report import DataReport
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import DISTILL, DPO, SFT
from trainingjob_api.world import RunConfig
from trainingjob_trainer.data.data_report import (
    DatasetReport,
    build_data_report,
    dump_reports,
    load_reports,
    log_report,
    merge_reports,
)
from trainingjob_trainer.data.dataset_writer import (
    CACHE_FORMAT,
    CreatedDataset,
    HostShare,
    create_dataset,
    help_to_create,
    plan_dataset,
)
from trainingjob_trainer.data.mixture import Mixture, Phase, TrainingText
from trainingjob_trainer.data.preparation.listed_files import Sources
from trainingjob_trainer.data.preparation.preparation_tracker import PreparationTracker, Report, ignore_preparation
from trainingjob_trainer.data.sources.hub_dataset import delete_downloads, download_sources, wait_for_sources
from trainingjob_trainer.data.stored_probabilities import open_stored
from trainingjob_trainer.data.token_dataset import FOLDER, IDENTITY, TokenDataset, open_dataset
from trainingjob_trainer.huggingface.hub_tokenizer import drop_host_folder
from trainingjob_trainer.runtime.errors import TrainingError, foreign_error, storage_error
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store, has_object

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 2.0
POLL_GROWTH = 1.1
"""A host asks again after about a tenth of the time that it has waited."""
ALL_SOURCES = ""
"""The name of the dataset of all training sources, without weights."""


@dataclass(frozen=True)
class JobDatasets:
    """All token datasets of a job: the training text, and the evaluations' texts by name."""

    train: TrainingText
    evaluations: dict[str, TokenDataset]
    report: DataReport


def prepare_datasets(
    store: Store, config: RunConfig, share: HostShare | None, report: Report = ignore_preparation
) -> JobDatasets:
    """Return the job's token datasets. The leading host creates missing ones; the others help, and wait for it.

    `share` is the share of this host. None: it only waits. `report` receives the progress on the leading host.

    Raises:
        TrainingError: the text or the tokenizer cannot be used, or the folder cannot be written.
    """
    name = f"{FOLDER}/{config.job.uid}-{_hash_sections(config.spec)}"
    pointer, account = f"{name}.json", f"{name}.account.json"
    try:
        if share and share.leads and not has_object(store, pointer):
            _create_job_datasets(store, config.spec, share, report, name)
        elif share and not share.leads:
            for _, sources in _sources_by_dataset(config.spec):
                local_sources = wait_for_sources(sources, store, lambda: has_object(store, pointer))
                if local_sources and not has_object(store, pointer):
                    help_to_create(store, local_sources, config.spec, share)
        _wait_for(store, pointer)
        identities = _read_identities(store, pointer, config.spec)
        found = _open_datasets(store, identities, _read_account(store, account), config.spec)
    except OSError as error:
        raise storage_error(error, f"preparing the data in {store.locate(FOLDER)}", store.root) from error
    except UntrustedFileError as error:
        raise foreign_error(error, store.locate(FOLDER), store.root) from error
    if share and share.leads:
        delete_downloads(store)
        log_report(found.report)
    return found


def _wait_for(store: Store, name: str) -> None:
    """Return when an object exists. Thousands of hosts ask a bucket, and large text takes hours."""
    interval = MIN_POLL_SECONDS
    while not has_object(store, name):
        time.sleep(interval)
        interval = min(POLL_GROWTH * interval, MAX_POLL_SECONDS)


def prepare_folder(store: Store, spec: TrainingJobSpec, paths: Mapping[str, str], report: Report) -> JobDatasets:
    """Create the token datasets of a spec that are missing, for the jobs that will use the store; return all of them.

    `paths` is as in `plan_dataset`. Downloads stay: a job finds out by them that their tokens exist.

    Raises:
        TrainingError: the text or the tokenizer cannot be used, or the folder cannot be written.
    """
    try:
        made, texts = _create_datasets(store, spec, HostShare(), report, paths)
        folders = {name: dataset.folder for name, dataset in made.items()}
        return _open_datasets(store, folders, texts, spec, reads_stored=False)
    except OSError as error:
        raise storage_error(error, f"preparing the data in {store.locate(FOLDER)}", store.root) from error
    except UntrustedFileError as error:
        raise foreign_error(error, store.locate(FOLDER), store.root) from error


def _create_job_datasets(store: Store, spec: TrainingJobSpec, share: HostShare, report: Report, name: str) -> None:
    """Create the datasets of a job, then its account of the texts, and then its pointer to the datasets."""
    pointer = f"{name}.json"
    try:
        datasets, texts = _create_datasets(store, spec, share, report)
        store.write(f"{name}.account.json", (dump_reports(texts).encode(),))
        store.write(pointer, (json.dumps({name: dataset.folder for name, dataset in datasets.items()}).encode(),))
    except (OSError, TrainingError):
        if not has_object(store, pointer):  # else another replica was faster, and has deleted the downloads
            raise


def _create_datasets(
    store: Store,
    spec: TrainingJobSpec,
    share: HostShare,
    report: Report,
    paths: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, CreatedDataset], list[DatasetReport]]:
    """Create the token datasets of a job that are missing; return all of them, and the reports of the texts.

    All of them are listed before the first is tokenized, so that a missing text fails early.
    """
    writers = {
        name: plan_dataset(store, download_sources(sources, store), spec, paths)
        for name, sources in _sources_by_dataset(spec)
    }
    tracker = PreparationTracker([writer for writer in writers.values() if not writer.is_dataset_complete], report)
    datasets = {name: create_dataset(writer, share, tracker.follow(writer)) for name, writer in writers.items()}
    return datasets, merge_reports({name: dataset.text for name, dataset in datasets.items()}, spec)


def _open_datasets(
    store: Store,
    folders: Mapping[str, str],
    texts: Sequence[DatasetReport],
    spec: TrainingJobSpec,
    *,
    reads_stored: bool = True,
) -> JobDatasets:
    """Return the token datasets of a job. `folders` has the folder of each by name, and `texts` the reports of texts.

    With `reads_stored`, those of training have the stored probabilities of the job's teacher, if it reads any.

    Raises:
        TrainingError: a file is cut off, or stored probabilities cannot be used.
        UntrustedFileError: a folder does not hold a dataset.
    """
    opened = {
        name: open_dataset(store, folders[name], spec.training.sequence_length) for name, _ in _sources_by_dataset(spec)
    }
    evaluated = {evaluation.name for evaluation in spec.evaluation}
    if reads_stored and spec.objective and spec.objective.probabilities:
        stored = open_store(spec.objective.probabilities.uri)
        for name in opened.keys() - evaluated:
            reader = open_stored(stored, opened[name].dataset_hash, opened[name].num_sequences, spec)
            opened[name] = replace(opened[name], stored=reader)
    train = _join_training_text(opened, spec)
    evaluations = {evaluation.name: opened[evaluation.name] for evaluation in spec.evaluation}
    rows = {name: dataset.num_sequences for name, dataset in evaluations.items()}
    return JobDatasets(train, evaluations, build_data_report(texts, train, rows, spec))


def _join_training_text(opened: Mapping[str, TokenDataset], spec: TrainingJobSpec) -> TrainingText:
    """Return the training text: one dataset, or a mixture of one for each source."""
    if not spec.data.is_mixture:
        return opened[ALL_SOURCES] if spec.data.shuffle else opened[ALL_SOURCES].in_order()
    names = [source.name for source in spec.data.train]
    datasets = tuple(opened[dataset_of_source(name)] for name in names)
    if not spec.data.shuffle:
        datasets = tuple(dataset.in_order() for dataset in datasets)
    weights = tuple(
        float(dataset.num_sequences if source.weight is None else source.weight)
        for source, dataset in zip(spec.data.train, datasets, strict=True)
    )
    later = (
        Phase(phase.from_step, tuple(phase.weights.get(name, 0.0) for name in names))
        for phase in spec.data.weight_schedule
    )
    return Mixture(tuple(names), datasets, (Phase(1, weights), *later), spec.data.temperature or 1.0)


def _read_identities(store: Store, pointer: str, spec: TrainingJobSpec) -> dict[str, str]:
    """Return the hash of each token dataset of a job.

    Raises:
        UntrustedFileError: the file is not one that `prepare_datasets` writes.
    """
    identities = parse_untrusted_json(pointer, store.read(pointer, MAX_JSON_BYTES))
    if isinstance(identities, dict) and all(
        isinstance(dataset_hash := identities.get(name), str) and IDENTITY.fullmatch(dataset_hash)
        for name, _ in _sources_by_dataset(spec)
    ):
        return identities
    raise UntrustedFileError(f"{pointer} names no token datasets")


def dataset_of_source(name: str) -> str:
    """Return the name of the dataset of a training source in a mixture. No evaluation has a name with a slash."""
    return f"train/{name}"


def _read_account(store: Store, account: str) -> list[DatasetReport]:
    """Return the reports of the texts; empty if there are none, or they cannot be read."""
    try:
        return load_reports(store.read(account, MAX_JSON_BYTES).decode(errors="replace"))
    except FileNotFoundError:
        return []
    except UntrustedFileError:
        return load_reports("")


def _sources_by_dataset(spec: TrainingJobSpec) -> list[tuple[str, Sources]]:
    """Return the sources of each dataset, each with its path in the spec."""
    sources = [(f"spec.data.train[{place}]", source) for place, source in enumerate(spec.data.train)]
    train: list[tuple[str, Sources]] = [(ALL_SOURCES, sources)]
    if spec.data.is_mixture:
        train = [(dataset_of_source(source.name), [(field, source)]) for field, source in sources]
    held_out = [
        (evaluation.name, [(f"spec.evaluation[{place}]", evaluation)])
        for place, evaluation in enumerate(spec.evaluation)
    ]
    return [*train, *held_out]


def _hash_sections(spec: TrainingJobSpec) -> str:
    """Return a hash of the parts of the spec that decide the sequences."""
    of_a_source = set(TextSource.model_fields)
    sources = [
        [source.model_dump(include=of_a_source, exclude_none=True) | {"pattern": source.glob} for _, source in sources]
        for _, sources in _sources_by_dataset(spec)
    ]
    tokenizer = drop_host_folder(spec.tokenizer).model_dump()
    parts = [CACHE_FORMAT, sources, tokenizer, spec.training.sequence_length, spec.model.vocab_size]
    if spec.data.is_mixture:
        parts.append([source.name for source in spec.data.train])
    if spec.objective and spec.objective.type in (SFT, DISTILL):
        parts.append({"masksPrompts": spec.objective.masks_prompts})
    if spec.objective and spec.objective.type == DPO:
        parts.append({"pairs": True})
    if spec.data.fill_in_the_middle:
        parts.append({"fillInTheMiddle": spec.data.fill_in_the_middle.model_dump(), "seed": spec.training.seed})
    if spec.data.packing:
        parts.append(spec.data.packing.model_dump())
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
