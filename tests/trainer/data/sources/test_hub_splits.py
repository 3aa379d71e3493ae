"""Splits of data sets of the hub: by the metadata of README.md, else by the names of files."""

import pytest

from trainingjob_trainer.data.sources.hub_splits import HubMetadataError, find_split_files

README = """---
license: mit
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: en/train-*.parquet
  - split: test
    path: [en/test.parquet, ./en/more/*.parquet]
- config_name: de
  data_dir: ./de/
- config_name: more
  data_dir: en/more
  data_files:
  - split: train
    path: "*.parquet"
- config_name: whole
  data_dir: .
  data_files: "de/**"
- config_name: all
  data_files: "**"
---
# A data set
"""
FILES = ["en/train-0.parquet", "en/train-1.parquet", "en/test.parquet", "en/more/a.parquet", "de/train/b.parquet"]


@pytest.mark.parametrize(
    ("configuration", "split", "want"),
    [
        (None, None, FILES[:2]),
        ("en", "test", ["en/more/a.parquet", "en/test.parquet"]),
        ("de", None, ["de/train/b.parquet"]),
        ("more", None, ["en/more/a.parquet"]),
        ("whole", None, ["de/train/b.parquet"]),
        ("all", "train", sorted(FILES)),
    ],
)
def test_metadata_names_the_files_of_a_split(configuration: str | None, split: str | None, want: list[str]) -> None:
    assert find_split_files(FILES, README, configuration, split) == want


def expand(form: str, times: int) -> str:
    """Return a mapping of few bytes whose last value has 9^`times` values."""
    first = "a0: &a0 {x: 1}\n"
    return first + "".join(f"a{n}: &a{n} {form.format(','.join([f'*a{n - 1}'] * 9))}\n" for n in range(1, times + 1))


NAMES: dict[str, tuple[list[str], dict[str, list[int]]]] = {
    "shards": (
        [
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002-ab.parquet",
            "data/dev-00000-of-00001.parquet",
        ],
        {"train": [0, 1], "dev": [2]},
    ),
    "folders": (["training/a.jsonl", "x/my-valid-data/b.jsonl", "c.jsonl"], {"train": [0], "validation": [1]}),
    "file names": (
        ["a_train.jsonl", "dev.jsonl", "evaluation.x.jsonl"],
        {"train": [0], "validation": [1], "test": [2]},
    ),
    "words inside of others": (["trainer.jsonl", "latest.jsonl"], {"train": [0, 1]}),
    "hidden files": ([".x/train.jsonl", "__y/train.jsonl", "a.jsonl"], {"train": [2]}),
}


@pytest.mark.parametrize(("files", "want"), NAMES.values(), ids=NAMES)
def test_file_names_decide_without_metadata(files: list[str], want: dict[str, list[int]]) -> None:
    for split, places in want.items():
        assert find_split_files(files, "# A data set", None, split) == sorted(files[place] for place in places)
    with pytest.raises(HubMetadataError, match=f"has no split other. It has {', '.join(sorted(want))}"):
        find_split_files(files, "", None, "other")


BAD = {
    "no such configuration": (
        README,
        "fr",
        "has no configuration fr. It has all, de, en, more, whole",
        "configuration",
    ),
    "no such split of a configuration": (README, "en", "has no split validation. It has test, train", "split"),
    "no default": (
        README.replace("  default: true\n", ""),
        None,
        "has several configurations, and none is the default: all, de, en",
        "configuration",
    ),
    "no YAML": ("---\nconfigs: [\n---\n", None, "has a README.md whose metadata is no YAML", "repository"),
    "a name of many aliases": (
        "---\n" + expand("[{}]", 7) + "configs: [{config_name: *a7}]\n---\n",
        None,
        "no YAML, or too large",
        "repository",
    ),
    "merges of many aliases": (
        "---\n" + expand("{{<<: [{}]}}", 7) + "configs: [{config_name: a}]\n---\n",
        None,
        "no YAML, or too large",
        "repository",
    ),
    "no mapping": ("---\nconfigs: [1]\n---\n", None, "a configuration that is no mapping", "repository"),
    "broken braces": (
        "---\nconfigs: [{config_name: a, data_files: '{9..1}.jsonl'}]\n---\n",
        None,
        "has files {9..1}.jsonl, whose braces must have ranges in ascending order",
        "repository",
    ),
    "files elsewhere": (
        "---\nconfigs: [{config_name: a, data_files: 'https://example.com/a.jsonl'}]\n---\n",
        None,
        "has files of a outside of the repository: https://example.com/a.jsonl",
        "configuration",
    ),
}


@pytest.mark.parametrize(("readme", "configuration", "words", "field"), BAD.values(), ids=BAD)
def test_metadata_without_the_files_is_reported(readme: str, configuration: str | None, words: str, field: str) -> None:
    with pytest.raises(HubMetadataError, match=words) as caught:
        find_split_files(FILES, readme, configuration, "validation")

    assert caught.value.field == field


@pytest.mark.parametrize(
    "readme", ["---\n- a\n---\n", "---\nconfigs: 5\n---\n", "---\nno end", "\n---\nconfigs: []\n---"]
)
def test_other_metadata_has_no_configurations(readme: str) -> None:
    assert find_split_files(["a.jsonl"], readme, None, None) == ["a.jsonl"]
