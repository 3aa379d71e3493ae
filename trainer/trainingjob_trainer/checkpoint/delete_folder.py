"""Delete the folder of a job in a store: `URI UID`, for the command line."""

import sys
from collections.abc import Sequence

from trainingjob_trainer.checkpoint.owner import OWNER_FILE, is_owned_by_other
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import has_object


def main(arguments: Sequence[str]) -> str:
    """Delete the folder if the job owns it; return the reason if that fails, empty: done.

    The owner's file is deleted last, so that an interrupted deletion can be repeated.
    """
    uri, uid = arguments
    store = open_store(uri)
    try:
        if is_owned_by_other(store, uid):
            return "another job owns it. Name another folder, or delete it with the tools of the store."
        if has_object(store, OWNER_FILE):
            for entry in store.list_folder():
                if entry.is_folder:
                    store.delete_tree(entry.name)
                elif entry.name != OWNER_FILE:
                    store.delete(entry.name)
            store.delete(OWNER_FILE)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
