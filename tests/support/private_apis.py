"""Private APIs of dependencies that the product uses, and the scan that finds them in its source."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("crds", "operator", "trainer")
UNDOCUMENTED = {"asyncio.sslproto", "jaxlib"}
"""Public by name, but without a documented interface."""
PRIVATE_NAME = re.compile(r"(kopf|jax|orbax|flax|optax|aiohttp|kubernetes|pydantic)\.(\w+\.)*_[a-z]\w*(\.\w+)*")


@dataclass(frozen=True)
class Use:
    """One use of a private API: the file and the dotted name of the module or logger."""

    file: str
    name: str


def find_uses() -> set[Use]:
    """Return every import of a private module in the product, and every string constant that names one."""
    return {
        Use(path.relative_to(ROOT).as_posix(), name)
        for folder in FOLDERS
        for path in (ROOT / folder).glob("trainingjob_*/**/*.py")
        for name in _find_names(ast.parse(path.read_text()))
    }


def _find_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                imported = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Import():
                imported = [alias.name for alias in node.names]
            case ast.Constant(value=str(text)):
                imported = [text] if PRIVATE_NAME.fullmatch(text) else []
            case _:
                continue
        private = {name for name in imported if name in UNDOCUMENTED or PRIVATE_NAME.fullmatch(name)}
        yield from (name for name in private if name.rpartition(".")[0] not in private)
