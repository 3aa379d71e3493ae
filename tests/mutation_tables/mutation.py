"""One row of a table of mutations, and the folders of the code."""

from dataclasses import dataclass

SHELL = "operator/trainingjob_operator/shell"
CLI = "operator/trainingjob_operator/cli"
CORE = "operator/trainingjob_operator/core"
TRAINER = "trainer/trainingjob_trainer"
AGENT = "trainer/trainingjob_agent"
API = "crds/trainingjob_api"


@dataclass(frozen=True)
class Mutation:
    """One fault. `old` occurs in the file exactly once."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
