"""Patterns of text sources: files that they match, and the nearest legal values of rejected ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainingjob_api.globs import Glob, PatternProblem, excludes_everything, find_pattern_problem

MATCHES: dict[str, tuple[str, str, bool]] = {
    "a name": ("a.txt", "a.txt", True),
    "a name in a folder": ("a.txt", "deep/a.txt", False),
    "any name": ("*.txt", "a.txt", True),
    "any name, not in a folder": ("*.txt", "deep/a.txt", False),
    "any folder, none": ("**/*.txt", "a.txt", True),
    "any folder, several": ("**/*.txt", "x/y/z/a.txt", True),
    "a folder, then any": ("x/**/*.txt", "x/a.txt", True),
    "a folder, then any, elsewhere": ("x/**/*.txt", "y/a.txt", False),
    "any folder, then one": ("**/x/*.txt", "y/x/a.txt", True),
    "two stars twice": ("**/x/**/*.txt", "a/x/b/c/d.txt", True),
    "two stars at the end": ("x/**", "x/y/a.txt", True),
    "one character": ("part-?.txt", "part-7.txt", True),
    "one character, two there": ("part-?.txt", "part-17.txt", False),
    "a set": ("*.[pt]*", "a.py", True),
    "a set that is negated": ("[!a]*.txt", "a.txt", False),
    "a range": ("[0-9]*.txt", "12.txt", True),
    "another case": ("*.txt", "A.TXT", False),
    "the folder itself before it": ("./*.txt", "a.txt", True),
    "a star takes no slash": ("a*c.txt", "a/c.txt", False),
    "a dot is a dot": ("*.txt", "atxt", False),
    "a hidden file": ("*.txt", ".a.txt", False),
    "a hidden file by its dot": (".*.txt", ".a.txt", True),
    "a hidden file by its name": ("**/.a.txt", "x/.a.txt", True),
    "a hidden folder": ("**/*.txt", ".git/a.txt", False),
    "a hidden folder in another": ("**/*.txt", "x/.snapshot/y/a.txt", False),
    "a hidden folder by a star": ("*/a.txt", ".git/a.txt", False),
    "a hidden folder by its name": (".snapshot/**/*.txt", ".snapshot/y/a.txt", True),
    "a hidden folder by its name, and one in it": (".snapshot/**/*.txt", ".snapshot/.git/a.txt", False),
    "a folder of a volume": ("**/*.txt", "lost+found/a.txt", False),
    "a folder of a volume by its name": ("lost+found/*.txt", "lost+found/a.txt", True),
    "braces": ("*.{txt,md}", "a.md", True),
    "braces, another name": ("*.{txt,md}", "a.py", False),
    "braces of a folder": ("{en,de}/**/*.txt", "de/x/a.txt", True),
    "braces of a folder, another": ("{en,de}/**/*.txt", "fr/a.txt", False),
    "braces in braces": ("{a,b{1,2}}.txt", "b2.txt", True),
    "braces in braces, half": ("{a,b{1,2}}.txt", "b.txt", False),
    "braces with an empty text": ("a{,-b}.txt", "a.txt", True),
    "braces with wildcards": ("{part-*,all}.txt", "part-7.txt", True),
    "a list of stars in braces": ("{*.txt,*.md}", "a.md", True),
    "numbers": ("part-{8..11}.txt", "part-11.txt", True),
    "numbers, the next": ("part-{8..11}.txt", "part-12.txt", False),
    "numbers without zeros": ("part-{8..11}.txt", "part-08.txt", False),
    "numbers with zeros": ("part-{008..011}.txt", "part-009.txt", True),
    "numbers with zeros, without": ("part-{008..011}.txt", "part-9.txt", False),
    "braces of a hidden name": ("{.a,b*}.txt", ".a.txt", True),
    "braces with another hidden name": ("{.a,*}.txt", ".b.txt", False),
    "braces without a comma": ("{a}.txt", "{a}.txt", True),
    "a mapped volume": ("**/*.txt", "..data/a.txt", False),
}


@pytest.mark.parametrize(("pattern", "path", "want"), MATCHES.values(), ids=MATCHES.keys())
def test_a_pattern_matches(pattern: str, path: str, *, want: bool) -> None:
    assert Glob(pattern).matches(path) is want
    assert find_pattern_problem(pattern) is None


def test_exclude_matches_hidden_files() -> None:
    assert Glob("**/*.txt", hidden=True).matches(".git/a.txt")
    assert Glob("*", hidden=True).matches(".git")


def test_a_pattern_without_stars_for_folders_ends() -> None:
    glob = Glob("x/*.txt")
    inside = glob.advance(glob.start, "x")

    assert glob.reaches_below(inside)
    assert not glob.reaches_below(glob.advance(inside, "y.txt"))
    assert not glob.reaches_below(glob.advance(glob.start, "other"))


FAULTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "stars before a suffix": ("**.py", "between slashes", ("**/*.py",)),
    "stars before a suffix, in a folder": ("x/**.py", "between slashes", ("x/**/*.py",)),
    "stars after a name": ("wiki**/*.txt", "between slashes", ("wiki*/**/*/*.txt",)),
    "stars after a name at the end": ("wiki**", "between slashes", ("wiki*/**/*",)),
    "three stars": ("***/*.txt", "`***`", ("**/*.txt",)),
    "braces with a range that runs backwards": ("part-{9..1}.txt", "ascending order", ("part-{1..9}.txt",)),
    "braces with a range of letters": ("part-{a..c}.txt", "ranges of whole numbers", ("part-[a-c].txt",)),
    "braces with a range in a list": ("part-{1..3,7}.txt", "ranges of whole numbers", ()),
    "braces with half a range": ("part-{1..}.txt", "ranges of whole numbers", ()),
    "braces with too many numbers": ("part-{0..9999}.txt", "ranges of at most 1,024 numbers", ()),
    "braces with too many patterns": ("{0..99}/{0..99}.txt", "at most 1,024 patterns", ()),
    "braces that become a range": ("{.{a,.}}.txt", "ranges of whole numbers", ()),
    "braces without a name": ("{,a}/b.txt", "leave a name empty", ()),
    "a list with commas": ("*.txt,*.md", "one pattern", ("*.txt", "*.md")),
    "a list with blanks": ("*.txt *.md", "one pattern", ("*.txt", "*.md")),
    "a list with bars": ("**/*.txt|**/*.md", "one pattern", ("**/*.txt", "**/*.md")),
    "a list with semicolons": ("*.txt; *.md", "one pattern", ("*.txt", "*.md")),
    "a group of a shell": ("*.@(py|txt)", "group", ()),
    "a negated group of a shell": ("!(a).txt", "group", ()),
    "a negation": ("!a.txt", "`exclude`", ("a.txt",)),
    "a backslash between folders": ("**\\*.txt", "backslash", ("**/*.txt",)),
    "a regular expression": (r".*\.txt", "backslash", (".*.txt",)),
    "a backslash at the end": ("a.txt\\", "backslash", ("a.txt",)),
    "a line break of a block": ("**/*.txt\n", "control characters", ("**/*.txt",)),
    "a tab": ("a\tb.txt", "control characters", ("ab.txt",)),
    "a blank before": (" *.txt", "a space", ("*.txt",)),
    "a blank after": ("*.txt ", "a space", ("*.txt",)),
    "only a blank": (" ", "a space", ()),
    "a negation of regular expressions": ("[^a]*.txt", "`[!`", ("[!a]*.txt",)),
    "a set without an end": ("*.[txt", "`]`", ()),
    "a range that runs backwards": ("[z-a].txt", "ascending", ()),
    "a folder": ("x/", "not folders", ("x/**/*",)),
    "the folder itself": (".", "the folder itself", ("**/*",)),
}


@pytest.mark.parametrize(("pattern", "words", "nearest"), FAULTS.values(), ids=FAULTS.keys())
def test_unsupported_pattern_syntax_is_rejected(pattern: str, words: str, nearest: tuple[str, ...]) -> None:
    fault = find_pattern_problem(pattern)

    assert fault is not None
    assert words in fault.message
    assert fault.nearest == nearest
    assert [find_pattern_problem(one) for one in nearest] == [None] * len(nearest)


FOLDERS = ("deep/", ".", "deep/**", "**/x/")


@pytest.mark.parametrize("pattern", FOLDERS)
def test_folders_may_be_left_out(pattern: str) -> None:
    assert find_pattern_problem(pattern, folders=True) is None


LITERAL = ("{{name}}.txt", "part *.txt", "a,b.txt", "[[]x].txt", "[]a].txt", "résumé*.txt", "a(1).txt", "x!.txt")


@pytest.mark.parametrize("pattern", LITERAL)
def test_unusual_names_are_no_faults(pattern: str) -> None:
    assert find_pattern_problem(pattern) is None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text("*?[]{}!^,. \\/ab-", min_size=1, max_size=12))
def test_every_suggestion_is_legal(pattern: str) -> None:
    fault = find_pattern_problem(pattern) or PatternProblem("")

    assert all(find_pattern_problem(one) is None for one in fault.nearest)


NAMES = st.sampled_from(("a", "b", "a.txt", "b.txt", "c.md"))
PARTS = st.sampled_from(("*", "**", "a", "b*", "*.txt", "?", "[ab]", "[!a]*"))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(NAMES, min_size=1, max_size=4))
def test_matches_what_pathlib_matches(parts: list[str], names: list[str]) -> None:
    pattern, path = "/".join([*parts, "*"]), Path(*names)

    assert Glob(pattern).matches(path.as_posix()) is _full_match(path.parts, (*parts, "*"))


def _full_match(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return the same by the plainest rules: each star is tried in every way."""
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_full_match(names[skipped:], parts[1:]) for skipped in range(len(names) + 1))
    return bool(names) and Path(names[0]).match(parts[0]) and _full_match(names[1:], parts[1:])


NOTHING: dict[str, tuple[str, str, bool]] = {
    "all": ("*.txt", "**/*", True),
    "all folders": ("*.txt", "**", True),
    "all at the top": ("**/*.txt", "*", True),
    "the folder itself": ("**/*.txt", ".", True),
    "the same": ("**/*.txt", "**/*.txt", True),
    "the same, written otherwise": ("*.txt", "./*.txt", True),
    "what lies deep": ("**/*.txt", "*/*", False),
    "another kind": ("**/*.txt", "**/*.md", False),
}


@pytest.mark.parametrize(("pattern", "exclude", "want"), NOTHING.values(), ids=NOTHING.keys())
def test_excludes_everything(pattern: str, exclude: str, *, want: bool) -> None:
    assert excludes_everything(pattern, exclude) is want
