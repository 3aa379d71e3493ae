"""Requests of an agent to the store of its job, each by a process: `write ROOT NAME` and `corrupt ROOT`.

The last line of the output is the answer: `DONE`, or the reason for which the request failed.
"""

import sys
from collections.abc import Iterator, Sequence

from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_agent.store_requests import DONE
from trainingjob_trainer.store.committed_steps import list_committed
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

MIN_CHECKPOINTS = 2
"""Minimum number of checkpoints before the newest may be damaged."""


def main(arguments: Sequence[str]) -> str:
    """Run a request; return the answer."""
    kind, root, *names = arguments
    try:
        store = open_store(root)
        if kind == "corrupt":
            return corrupt_newest(store) or DONE
        store.write(names[0], (sys.stdin.buffer.read(),))
    except (OSError, ValueError) as error:
        return " ".join((getattr(error, "strerror", None) or str(error)).split())
    return DONE


def corrupt_newest(store: Store) -> str:
    """Flip a bit in the largest file of the newest checkpoint; return the reason if that fails, empty: done.

    Raises:
        OSError: the store does not respond, or refuses the write.
    """
    saved = list(list_committed(store))
    if len(saved) < MIN_CHECKPOINTS:
        return f"{len(saved)} saved steps: at least {MIN_CHECKPOINTS} are needed, so that an intact one remains"
    folder = max(
        saved, key=lambda committed: (committed.lineage, committed.step.step, committed.step.generation)
    ).folder
    sizes = {name: store.size(f"{folder}/{name}") for name in store.list_files(folder) if name != MANIFEST_FILE}
    name = max(sizes, key=lambda name: sizes[name], default="")
    if not sizes.get(name):
        return f"the saved step has no files in {store.locate(folder)}"
    store.write(f"{folder}/{name}", _flip_bit(store.read_chunks(f"{folder}/{name}"), sizes[name] // 2))
    return ""


def _flip_bit(chunks: Iterator[bytes], at: int) -> Iterator[bytes]:
    """Yield the same bytes with a bit of the byte at a position flipped."""
    start = 0
    for chunk in chunks:
        place = at - start
        start += len(chunk)
        yield chunk[:place] + bytes([chunk[place] ^ 1]) + chunk[place + 1 :] if 0 <= place < len(chunk) else chunk


if __name__ == "__main__":
    print(main(sys.argv[1:]))  # the answer
