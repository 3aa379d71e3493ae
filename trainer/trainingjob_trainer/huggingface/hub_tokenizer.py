"""The tokenizer of a repository of the hub. Its files stay below the job's folder, so every world has the same."""

import hashlib

from trainingjob_api.spec.hub import DEFAULT_REVISION
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.huggingface.companion_files import FOLDER
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.hub_folder import HubFolder
from trainingjob_trainer.huggingface.tokenizer_files import FOLDER_FILES
from trainingjob_trainer.store.port import Store

FIELD = "spec.tokenizer.huggingFace"


def resolve_tokenizer(spec: TrainingJobSpec, own: Store, *, is_leader: bool) -> TrainingJobSpec:
    """Return a spec whose tokenizer has the path of its files: downloaded, if they are those of a repository.

    Other processes than the leader wait for them.

    Raises:
        TrainingError: the hub refuses the repository or does not respond, or the files cannot be written.
    """
    source = spec.tokenizer.hugging_face
    if source is None:
        return spec
    revision = source.revision or DEFAULT_REVISION
    hub = HubRepository(source.repository, revision, "model", f"{FIELD}.repository", f"{FIELD}.token")
    name = hashlib.sha256(f"{source.repository}@{revision}".encode()).hexdigest()[:16]
    folder = HubFolder(own, f"{FOLDER}/tokenizer/{name}", f"{FOLDER}/tokenizer/{name}.json", FOLDER_FILES)
    folder.download(hub, is_leader=is_leader)
    tokenizer = spec.tokenizer.model_copy(update={"path": own.locate(folder.files)})
    return spec.model_copy(update={"tokenizer": tokenizer})
