"""The commands of a page, as the journeys run them."""

from pathlib import Path

import pytest

from e2e.documented_commands import fill_in, read_commands

ROOT = Path(__file__).parents[2]
PAGE = """# A page

## Other

```sh
helm list
```

## Upgrade

Text with `code`.

```sh
helm upgrade one charts/one \\
  --set 'a={b,c}' --set image.tag=TAG
helm rollback one
```

```sh
helm uninstall one
```

## Empty

Text.

## Last

```sh
helm version
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_the_first_shell_block_below_a_heading_is_read(page: Path) -> None:
    assert read_commands(page, "Upgrade") == [
        ["helm", "upgrade", "one", "charts/one", "--set", "a={b,c}", "--set", "image.tag=TAG"],
        ["helm", "rollback", "one"],
    ]


@pytest.mark.parametrize("heading", ["Empty", "Missing"])
def test_a_page_without_the_commands_is_an_error(page: Path, heading: str) -> None:
    with pytest.raises(ValueError, match=f"must have a heading `## {heading}`"):
        read_commands(page, heading)


def test_placeholders_are_replaced_and_must_occur() -> None:
    words = ["helm", "upgrade", "charts/one", "--set", "image.tag=TAG", "--set=a=TAGS"]

    assert fill_in(words, {"TAG": "1.0", "charts/one": "/new"}) == [
        *("helm", "upgrade", "/new", "--set", "image.tag=1.0", "--set=a=TAGS"),
    ]
    with pytest.raises(ValueError, match="must have the placeholder NAME"):
        fill_in(words, {"NAME": "1"})


def test_the_page_for_administrators_upgrades_and_rolls_back_in_two_commands() -> None:
    upgrade, rollback = read_commands(ROOT / "docs/operations.md", "Upgrade and roll back")

    assert (upgrade[:2], rollback[:2]) == (["helm", "upgrade"], ["helm", "rollback"])
    assert fill_in(upgrade, {"TAG": "1.0", "charts/trainingjob": "/chart"})[3] == "/chart"
