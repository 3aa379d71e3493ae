"""Commands that the documentation prints, so that journeys run them as users do."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path


def read_commands(page: Path, heading: str) -> list[list[str]]:
    """Return the words of each command in the first shell block below a heading.

    Raises:
        ValueError: the page has no such heading, or no shell block below it.
    """
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{page}: must have a heading `## {heading}` with a block of `sh` below it")
    return [shlex.split(line) for line in found[1].replace("\\\n", " ").splitlines()]


def fill_in(command: list[str], values: Mapping[str, str]) -> list[str]:
    """Return a command with placeholders replaced: `TAG` is a whole word, or follows an equals sign.

    Raises:
        ValueError: a placeholder does not occur.
    """
    filled = list(command)
    for name, value in values.items():
        pattern = re.compile(rf"(^|=){re.escape(name)}$")
        filled = [pattern.sub(lambda match, value=value: match[1] + value, argument) for argument in filled]
        if not any(pattern.search(argument) for argument in command):
            raise ValueError(f"`{shlex.join(command)}`: must have the placeholder {name}")
    return filled
