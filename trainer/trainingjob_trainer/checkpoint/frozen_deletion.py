"""Deletion of frozen tensors to which no step refers any more."""

from trainingjob_agent.checkpoint_layout import FROZEN_FOLDER, Writer, hash_job
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.saved_steps import list_references, list_step_folders
from trainingjob_trainer.checkpoint.step_changes import delete_step
from trainingjob_trainer.store.port import Store


def delete_unused_frozen(store: Store, fence: Fence) -> None:
    """Delete the frozen tensors of earlier worlds of the job to which no step of the store refers.

    Those of this world stay: its next step may refer to them. A step whose manifest cannot be read may refer to any, so
    that nothing is deleted.

    Raises:
        TrainingError: a later world exists, so this one is fenced off.
        OSError: the store does not respond, or refuses the deletion.
    """
    running = fence.find_running()
    earlier = [
        folder
        for folder, _, _ in list_step_folders(store, FROZEN_FOLDER)
        if (writer := folder.step_name.writer) and writer.generation not in running and _is_of_earlier(writer, fence)
    ]
    used = list_references(store) if earlier else None
    for folder in earlier:
        if used is not None and folder.name not in used:
            fence.check()
            delete_step(folder, fence)


def _is_of_earlier(writer: Writer, fence: Fence) -> bool:
    return writer.job == hash_job(fence.job_uid) and writer.generation < fence.generation
