"""Copy JAX's own cache of a program of `spec.program` between this host and a bucket: a process of the agent.

`ROOT FOLDER` are the arguments, and the job's secret is the input. The last line of the output is the answer: `DONE`,
or the reason for which it failed. JAX itself could write to Google Cloud Storage if `etils` is installed, but not to
other buckets, and a program would then wait for the bucket, and fail with it.

Loading an entry executes its content. Each object therefore has an authentication code that only this job can compute,
which is verified first (see `compile_cache_files`). Its name contains the processor, because a program with an
instruction that a processor lacks would end its process.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainingjob_agent.jax_cache_folder import ENTRY_NAME, list_complete
from trainingjob_agent.store_requests import DONE
from trainingjob_trainer.runtime.compile_cache_files import (
    MAX_PROGRAM_BYTES,
    PROGRAM_SUFFIX,
    program_file_name,
    read_program,
    sign_program,
)
from trainingjob_trainer.runtime.processor import describe_processor
from trainingjob_trainer.store.folder_limit import MAX_FOLDER_BYTES, delete_least_recent
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

BUCKET_FOLDER = "jax-cache"
"""Folder of the entries below the run folder."""
OBJECT_NAME = re.compile(rf"({ENTRY_NAME.pattern})-[0-9a-f]{{32}}{re.escape(PROGRAM_SUFFIX)}", re.ASCII)
NICENESS = 10
"""A program trains meanwhile."""


def main(arguments: Sequence[str], secret: str) -> str:
    """Copy what one side lacks; return the answer."""
    root, folder = arguments
    store = open_store(f"{root}/{BUCKET_FOLDER}")
    try:
        delete_least_recent(folder, ENTRY_NAME, 0)
        names = [entry.name for entry in store.list_folder() if not entry.is_folder]
        download_entries(store, names, folder, secret)
        upload_entries(store, names, folder, secret)
    except (OSError, ValueError) as error:
        return " ".join((getattr(error, "strerror", None) or str(error)).split())
    return DONE


def download_entries(store: Store, names: Sequence[str], folder: str, secret: str) -> None:
    """Download the entries that this host lacks, as many as fit into the limit of its folder.

    `names` are the objects of the store.

    Raises:
        OSError: the store does not respond, or the folder cannot be written.
    """
    local_sizes = {path.name: path.stat().st_size for path in Path(folder).glob("*") if ENTRY_NAME.fullmatch(path.name)}
    used = sum(local_sizes.values())
    stored_names, local = dict(_find_objects(names, secret)), open_store(folder)
    for entry in sorted(stored_names.keys() - local_sizes.keys()):
        size = store.size(stored_names[entry])
        if used + size <= MAX_FOLDER_BYTES and (content := read_program(store, stored_names[entry], secret)):
            local.write(entry, (content,))
            used += size


def upload_entries(store: Store, names: Sequence[str], folder: str, secret: str) -> None:
    """Upload the complete entries that the store lacks, up to the same limit. `names` are the objects of the store.

    Raises:
        OSError: the store does not respond or is full, or an entry cannot be read.
    """
    missing = sorted(list_complete(folder) - dict(_find_objects(names, secret)).keys())
    used = sum(store.size(name) for name in names) if missing else 0
    for entry in missing:
        content = open_store(folder).read(entry, MAX_PROGRAM_BYTES)
        used += len(content)
        if used > MAX_FOLDER_BYTES:
            raise OSError(f"{store.root} has more than {MAX_FOLDER_BYTES >> 30} GiB: delete it to keep new programs")
        name = _object_name(entry, secret)
        store.write(name, sign_program(name, content, secret))


def _find_objects(names: Sequence[str], secret: str) -> Iterator[tuple[str, str]]:
    """Yield the entries of this job and processor, each with its object. Other objects are ignored."""
    for name in names:
        found = OBJECT_NAME.fullmatch(name)
        if found and _object_name(found[1], secret) == name:
            yield found[1], name


def _object_name(entry: str, secret: str) -> str:
    return program_file_name(secret, entry, json.dumps(describe_processor()))


if __name__ == "__main__":
    os.nice(NICENESS)
    print(main(sys.argv[1:], sys.stdin.read()))  # the answer
