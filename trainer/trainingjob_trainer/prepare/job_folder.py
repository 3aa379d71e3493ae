"""The job's folder before a process joins a world: its owner, and downloads that all processes read there.

A repository takes hours, so all processes wait here, before they connect.
"""

from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_trainer.checkpoint import backup, kept_exports, owner
from trainingjob_trainer.huggingface.hub_download import delete_downloads, download_sources
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.store.opening import open_store


def claim_folder(start: StartWorld) -> None:
    """Check that this process may write to the checkpoint folder; process 0 claims it for the job."""
    store = open_store(start.config.spec.checkpoint.uri)
    owner.check_writable(store)
    if start.process == 0:
        has_trained = bool(start.world.lineage or start.world.committed)
        owner.claim(store, start.config, has_trained=has_trained)
        backup.claim(start.config)
        kept_exports.claim(start.config)


def prepare_weights(start: StartWorld) -> None:
    """Download the initial weights and adapters if the job has no step yet; delete them if it has."""
    checkpoint, is_leader = start.config.spec.checkpoint, start.process == 0
    source = checkpoint.initialize_from
    if source is None:
        return
    own = open_store(checkpoint.uri)
    if not start.world.committed:
        download_sources(source, own, is_leader=is_leader)
    elif is_leader:
        delete_downloads(own)


def resolve_start(start: StartWorld) -> StartWorld:
    """Return the start of a world with the path of its tokenizer: process 0 downloads that of a repository.

    A hot standby waits for the files of the world that trains.
    """
    own, is_leader = open_store(start.config.spec.checkpoint.uri), start.process == 0 and not start.waits
    spec = resolve_tokenizer(start.config.spec, own, is_leader=is_leader)
    return start.model_copy(update={"config": start.config.model_copy(update={"spec": spec})})
