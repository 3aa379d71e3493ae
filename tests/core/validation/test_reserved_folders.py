"""Folders of the pod that a job may not mount."""

import pytest

from trainingjob_operator.core.validation.reserved_folders import is_reserved

FOLDERS = {
    "a folder of one's own": ("/shared", False),
    "one beside ours": ("/etcetera", False),
    "one of one's own in /tmp": ("/tmp/data", False),
    "all of /tmp": ("/tmp", True),
    "ours": ("/etc", True),
    "in ours": ("/etc/trainingjob", True),
    "above ours": ("/var", True),
    "everything": ("/", True),
    "with a slash at its end": ("/opt/venv/", True),
}


@pytest.mark.parametrize(("folder", "want"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_is_reserved(folder: str, want: bool) -> None:
    assert is_reserved(folder) == want
