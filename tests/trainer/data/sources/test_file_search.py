"""Files of a folder that are read, and the reports of all others: none is lost or doubled silently."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.texts import fail, find, grow, names, skips
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.sources.file_search import FileSearch

TREES: dict[str, tuple[dict[str, str], dict[str, Any], list[str], dict[str, int]]] = {
    "a linked folder": (
        {"small.txt": "s", "big": "-> ../far", "../far/long.txt": "l"},
        {},
        ["big/long.txt", "small.txt"],
        {},
    ),
    "all is linked": ({"big": "-> ../far", "../far/long.txt": "l"}, {}, ["big/long.txt"], {}),
    "a linked folder in a linked folder": (
        {"x": "-> ../far", "../far/y": "-> ../farther", "../farther/a.txt": "a"},
        {},
        ["x/y/a.txt"],
        {},
    ),
    "a cycle": ({"a.txt": "a", "deep/up": "-> .."}, {}, ["a.txt"], {"duplicate": 1}),
    "a cycle of two": (
        {"x/a.txt": "a", "x/y": "-> ../y", "y/x": "-> ../x", "y/b.txt": "b"},
        {},
        ["x/a.txt", "y/b.txt"],
        {"duplicate": 2},
    ),
    "a link to itself": ({"a.txt": "a", "loop": "-> loop"}, {}, ["a.txt"], {"brokenLink": 1}),
    "a folder by two names": (
        {"real/a.txt": "a", "again": "-> real"},
        {},
        ["real/a.txt"],
        {"duplicate": 1},
    ),
    "a file by two names": ({"a.txt": "a", "0.txt": "-> a.txt"}, {}, ["a.txt"], {"duplicate": 1}),
    "a file by three names": (
        {"x": "a", "a.txt": "-> x", "b.txt": "-> x"},
        {},
        ["a.txt"],
        {"duplicate": 1, "otherName": 1},
    ),
    "a folder that only its second name lets match": (
        {"real/a.txt": "a", "again": "-> real"},
        {"pattern": "again/*.txt"},
        ["again/a.txt"],
        {"notSearched": 1},
    ),
    "notebooks' copies": (
        {"a.txt": "a", ".ipynb_checkpoints/a-checkpoint.txt": "a"},
        {},
        ["a.txt"],
        {"hidden": 1},
    ),
    "snapshots of a store": ({"a.txt": "a", ".snapshot/hourly/a.txt": "a"}, {}, ["a.txt"], {"hidden": 1}),
    "a bin": ({"a.txt": "a", ".Trash-0/b.txt": "b"}, {}, ["a.txt"], {"hidden": 1}),
    "hidden files": ({"a.txt": "a", "x/._b.txt": "\0", ".c.txt": "c"}, {}, ["a.txt"], {"hidden": 2}),
    "a repository": ({"a.txt": "a", ".git/logs/x.txt": "x", ".github/y.txt": "y"}, {}, ["a.txt"], {"hidden": 2}),
    "archives of a Mac, and a volume's own": (
        {"a.txt": "a", "__MACOSX/a.txt": "x", "lost+found/b.txt": "x", "@eaDir/a.txt": "x", "#recycle/c.txt": "x"},
        {},
        ["a.txt"],
        {"hidden": 4},
    ),
    "a mounted ConfigMap": (
        {"..2026_01/a.txt": "a", "..2026_01/b.txt": "b", "..data": "-> ..2026_01"}
        | {"a.txt": "-> ..data/a.txt", "b.txt": "-> ..data/b.txt"},
        {},
        ["a.txt", "b.txt"],
        {"hidden": 2},
    ),
    "a hidden folder that is named": (
        {"a.txt": "a", ".snapshot/hourly/a.txt": "a"},
        {"pattern": ".snapshot/**/*.txt"},
        [".snapshot/hourly/a.txt"],
        {"otherName": 1},
    ),
    "what is excluded": (
        {"a.txt": "a", "deep/b.txt": "b", "deep/c.txt": "c", "d.txt": "d"},
        {"exclude": ("deep", "d.*")},
        ["a.txt"],
        {"excluded": 2},
    ),
    "an excluded folder behind a link": (
        {"a.txt": "a", "x": "-> ../far", "../far/b.txt": "b"},
        {"exclude": ("x/**",)},
        ["a.txt"],
        {"excluded": 1},
    ),
    "other names": ({"a.txt": "a", "b.TXT": "b", "c": "c"}, {}, ["a.txt"], {"otherName": 2}),
    "folders that the pattern does not search": (
        {"a.txt": "a", "x/b.txt": "b", "y/z/c.txt": "c"},
        {"pattern": "*.txt"},
        ["a.txt"],
        {"notSearched": 2},
    ),
    "a folder that is called like a file": ({"a.txt/b.txt": "b"}, {}, ["a.txt/b.txt"], {}),
    "a link that leads nowhere, of another name": (
        {"a.txt": "a", "x": "-> /nowhere"},
        {},
        ["a.txt"],
        {"brokenLink": 1},
    ),
    "an editor's lock": ({"a.txt": "a", ".#a.txt": "-> me@host.1"}, {}, ["a.txt"], {"hidden": 1}),
}


@pytest.mark.parametrize(("tree", "options", "want", "skipped"), TREES.values(), ids=TREES.keys())
def test_read_and_skipped_files(
    tmp_path: Path, tree: dict[str, str], options: dict[str, Any], want: list[str], skipped: dict[str, int]
) -> None:
    found = find(grow(tmp_path / "text", **tree), **options)

    assert names(found) == want
    assert skips(found) == skipped


def test_pipes_are_not_read(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.txt": "a"})
    os.mkfifo(tmp_path / "pipe.txt")

    assert skips(find(tmp_path)) == {"notAFile": 1}


def test_many_links_between_folders_end(tmp_path: Path) -> None:
    """Each of nine folders links to all: without a record of searched folders there are 9! paths through them."""
    for one in range(9):
        grow(tmp_path, **{f"d{one}/{one}.txt": "x"}, **{f"d{one}/to{other}": f"-> ../d{other}" for other in range(9)})

    found = find(tmp_path)

    assert names(found) == [f"d{one}/{one}.txt" for one in range(9)]
    assert skips(found) == {"duplicate": 81}


SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_file_is_read_or_reported(tmp_path: Path, seed: int) -> None:
    """Read and skipped files of a random folder with links are together exactly its files."""
    draw = random.Random(seed)  # noqa: S311  # which trees are tried, nothing else
    root = plant(draw, tmp_path / "text")
    pattern = draw.choice(["**/*.txt", "*.txt", "**/*", "**/d/*.txt", ".h/**/*", "d/**", "*/*"])
    exclude = draw.sample(["d", "**/e", "**/*.md", "b.txt", "e/**"], draw.randint(0, 2))

    entries = list(FileSearch(pattern, exclude).walk(root))

    reported = {entry.names: entry.reason for entry in entries}
    assert len(reported) == len(entries)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            parts = (Path(folder) / name).relative_to(root).parts
            whole = Path(folder, name)
            is_searched = whole.is_dir() and parts not in reported
            is_below_skipped = any(parts[:end] in reported for end in range(1, len(parts)))
            assert parts in reported or is_searched or is_below_skipped, parts
    read = {entry.real for entry in entries if entry.reason is None}
    plain = {path for path in root.glob(pattern) if path.is_file()} if pattern != "d/**" else set()
    hidden = {path for path in plain if any(part.startswith(".") for part in path.relative_to(root).parts)}
    left_out = {path for one in exclude for path in root.glob(one)}
    left_out |= {path for path in plain if left_out.intersection(path.parents)}
    missing = {os.path.realpath(path) for path in plain - hidden - left_out} - read
    assert missing == set()


def plant(draw: random.Random, root: Path) -> Path:
    """Return a folder with random files, folders and links."""
    root.mkdir()
    folders = [root]
    for _ in range(draw.randint(1, 6)):
        folder = draw.choice(folders) / draw.choice(["d", "e", ".h"])
        if not folder.exists():
            folder.mkdir()
            folders.append(folder)
    for _ in range(draw.randint(1, 12)):
        place = draw.choice(folders) / draw.choice(["a.txt", "b.txt", "c.md", ".x.txt", "link", "l.txt"])
        if place.is_symlink() or place.exists():
            continue
        if draw.random() < 0.4:
            goals = [*folders, *(path for path in root.rglob("*.txt")), Path("/nowhere")]
            place.symlink_to(draw.choice(goals))
        else:
            place.write_text("x")
    return root


NOTHING: dict[str, tuple[dict[str, str], dict[str, Any], tuple[str, ...]]] = {
    "another case": ({"A.TXT": "a"}, {}, ("It has 1 file: A.TXT.", 'Nearest legal value: "**/*.TXT".')),
    "another suffix": (
        {"a.md": "a", "b.md": "b", "x/c.md": "c", "d.rst": "d"},
        {},
        ("It has 4 files: a.md, b.md, d.rst, ....", 'Nearest legal value: "**/*.md".'),
    ),
    "only compressed": (
        {"a.txt.gz": "a"},
        {},
        ("It has 1 file: a.txt.gz.", 'Nearest legal value: "**/*.txt.gz".'),
    ),
    "only Parquet": (
        {"a.parquet": "a"},
        {},
        ("1 file: a.parquet.", "format Parquet must not be read with `format: text`: set `format: parquet`"),
    ),
    "only records": ({"a.jsonl": "a"}, {}, ("1 file: a.jsonl.", 'Nearest legal value: "**/*.jsonl".')),
    "no suffix": ({"README": "a"}, {}, ("1 file: README.", "Correct the pattern or the path.")),
    "only hidden": ({".cache/a.txt": "a"}, {}, ("It has 1 hidden (.cache).", "Correct")),
    "deeper": ({"x/a.txt": "a"}, {"pattern": "*.txt"}, ("1 in folders that the pattern does not search (x).",)),
    "all excluded": ({"a.txt": "a"}, {"exclude": ("a.*",)}, ("without a.*.", "It has 1 excluded (a.txt).")),
    "empty": ({"x/.keep": ""}, {"pattern": "*.md"}, ("1 in folders",)),
}


@pytest.mark.parametrize(("tree", "options", "words"), NOTHING.values(), ids=NOTHING.keys())
def test_pattern_without_matches_lists_the_files_that_exist(
    tmp_path: Path, tree: dict[str, str], options: dict[str, Any], words: tuple[str, ...]
) -> None:
    error = fail(lambda: find(grow(tmp_path / "text", **tree), **options))

    assert (error.reason, error.path) == (FailureReason.DATA, "spec.data.train[0].pattern")
    assert [word for word in words if word not in str(error)] == []


def test_an_empty_folder_is_called_so(tmp_path: Path) -> None:
    assert "It is empty." in str(fail(lambda: find(tmp_path)))


@pytest.mark.parametrize(
    ("goal", "words"),
    [("/nowhere/a", "is a link to /nowhere/a"), (".git/annex/objects/X/a", "Run `git annex get`")],
)
def test_matching_broken_link_is_rejected(tmp_path: Path, goal: str, words: str) -> None:
    grow(tmp_path / "text", **{"a.txt": "a", "b.txt": f"-> {goal}"})

    error = fail(lambda: find(tmp_path / "text"))

    assert (error.reason, error.path) == (FailureReason.DATA, "spec.data.train[0].path")
    assert words in str(error)


def test_folder_that_cannot_be_listed_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path, **{"a.txt": "a", "secret/b.txt": "b"})
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)

    error = fail(lambda: find(tmp_path))

    assert "secret cannot be searched: Permission denied" in str(error)


def test_names_that_no_text_can_hold_are_shown(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"b\xff\n.md")
    path.write_text("x")

    error = fail(lambda: find(tmp_path))

    assert "1 file: b??.md" in str(error)
    str(error).encode()


def test_a_file_needs_no_pattern(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.md": "a"})

    found = find(tmp_path / "a.md", pattern="*.txt", exclude=("x",))

    assert (names(found), found.unused) == (["a.md"], "pattern, exclude")


def test_braces_choose_files_and_folders(tmp_path: Path) -> None:
    grow(
        tmp_path,
        **dict.fromkeys(("en/08.txt", "en/09.md", "de/10.txt", "fr/09.txt", "en/11.txt", "en/12.txt"), "x"),
    )

    found = find(tmp_path, pattern="{en,de}/{08..11}.{txt,md}", exclude=["**/{10,11}.txt"])

    assert names(found) == ["en/08.txt", "en/09.md"]
