"""The language of texts for users and of tests: no banned phrase, and no text for users with a sentence too long.

Texts are the string constants of at least three words in the packages, the help texts of commands, the field
descriptions of the CRD, the documentation and the notes of the chart. Of tests they are the names and docstrings.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "operator/trainingjob_operator",
    "crds/trainingjob_api",
    "trainer/trainingjob_agent",
    "trainer/trainingjob_trainer",
)
PAGES = ("docs/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md", "charts/trainingjob/templates/NOTES.txt")
CRD = "crds/trainingjob.yaml"
TESTS = ("tests", "e2e")

MIN_WORDS = 3
MAX_SENTENCE_WORDS = 25

BANNED = {
    r"go(es|ing)? on|went on|gone on": "continue, or resume",
    r"goes? back to|went back|gone back": "roll back",
    r"anew": "recreate, or restart",
    r"tells?|told": "report, or show",
    r"hears?|heard": "receive a heartbeat",
    r"heeds?|heeded": "apply",
    r"as it is": "name the state",
    r"of its own": "separate",
    r"nobody|somebody|everybody": "name the subject",
    r"for good": "permanently",
    r"whoever|lest": "name the subject, or the condition",
    r"bears|bore": "allow",
    r"knocks?": "connect",
    r"pardons?|pardoned": "do not count",
    r"guilty": "the cause",
    r"f(a|e)lls? silent": "heartbeat lost",
    r"no step is": "the step is not",
    r"says not": "is missing",
    r"to spare": "redundancy",
    r"stands? twice|is there twice": "must be unique",
    r"asked for it": "requested",
    r"(gives?|gave|giving) (\w+ ){1,2}back": "release",
    r"is about to go": "has a termination notice",
    r"where (it|they) stands?": "diagnostics",
    r"obey(s|ed)?": "inject, or apply",
    r"everywhere else": "name the places",
    r"come to nothing": "have no result",
    r"in words": "with a message",
    r"deaf": "unresponsive",
    r"comes? late|came late": "be slow",
    r"at work": "running",
    r"(its|their|his) way": "name the state, such as terminating",
    r"rooms?": "folder, package, or capacity",
    r"(stands?|stood) still": "stall",
    r"in vain": "without effect",
    r"shadow (world|process)(es|s)?": "hot standby",
}
"""Banned phrase, as a regular expression over whole words, and the words to use instead."""

BANNED_NAMES = {
    **dict.fromkeys(("one", "mine", "ours", "theirs", "odd", "story", "news", "room"), "the noun of the thing"),
    **dict.fromkeys(("words", "said", "told", "letter"), "message, reason, text or cause"),
    **dict.fromkeys(("voice", "heard"), "report, or heartbeat"),
    **dict.fromkeys(("happening", "happenings"), "event"),
    **dict.fromkeys(("chore", "chores"), "operation"),
    **dict.fromkeys(("asked", "wanted"), "requested, desired or expected"),
    "patience": "timeout",
}
"""Banned name of a variable, a parameter, a function or an attribute, and the name to use instead."""
CODE = (*PACKAGES, "crds/examples", "e2e", "tools")

PATTERN = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in BANNED), re.IGNORECASE)


class Text(NamedTuple):
    """A text, and its place."""

    place: str
    text: str
    is_message: bool


def phrases_of(text: str) -> list[str]:
    return [match.group(0) for match in PATTERN.finditer(text)]


def advise(phrase: str) -> str:
    return next(words for banned, words in BANNED.items() if re.fullmatch(banned, phrase, re.IGNORECASE))


def long_sentences_of(text: str) -> list[str]:
    """Return the sentences of a text that are too long. Colons, semicolons and separate lines end one, too.

    Names with `_` are no words: a list of flags is no sentence.
    """
    sentences = re.split(r"[.;:!?·](?:\s|$)|\n\s*\n|\n(?=\S)", text)
    return [sentence for sentence in sentences if num_words(sentence) > MAX_SENTENCE_WORDS]


def num_words(sentence: str) -> int:
    return len([word for word in sentence.split() if "_" not in word])


def violations_of(one: Text) -> list[str]:
    found = [f"{one.place}: '{phrase}': write {advise(phrase)}" for phrase in phrases_of(one.text)]
    if one.is_message:
        found += [f"{one.place}: more than {MAX_SENTENCE_WORDS} words: {text}" for text in long_sentences_of(one.text)]
    return found


def list_texts() -> Iterator[Text]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in string_constants(path.read_text()):
                yield Text(f"{path.relative_to(ROOT)}:{line}", text, is_message=True)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                yield Text(f"{path.relative_to(ROOT)}:{number}", re.sub(r"`[^`]*`", "X", line), is_message=False)
    for path, text in descriptions(yaml.load((ROOT / CRD).read_text(), Loader=yaml.CSafeLoader), ""):
        yield Text(f"{CRD}{path}", text, is_message=True)


def string_constants(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of string constants, without docstrings, but with the help texts of commands."""
    tree = ast.parse(source)
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for inner in node.values for part in ast.walk(inner)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # docstrings
            skipped.add(id(node.value))
        if isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(one) for one in node.decorator_list):
            yield node.lineno, ast.get_docstring(node) or ""
    for node in ast.walk(tree):
        text = None if id(node) in skipped else text_of(node)
        if text is not None and len(re.findall(r"[A-Za-z]+", text)) >= MIN_WORDS:
            yield getattr(node, "lineno", 0), text


def banned_names_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each banned name that a source binds."""
    for node in ast.walk(ast.parse(source)):
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if name.strip("_") in BANNED_NAMES:
            yield node.lineno, name


def texts_of_tests(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the names of tests, as words, and of all docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def list_test_texts() -> Iterator[Text]:
    for folder in TESTS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, text in texts_of_tests(path.read_text()):
                yield Text(f"{path.relative_to(ROOT)}:{line}", text, is_message=False)


def text_of(node: ast.AST) -> str | None:
    """Return the text of a string, with `X` for each placeholder. None: it is no string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def descriptions(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if isinstance(value.get("description"), str):
            yield path, value["description"]
        for key, inner in value.items():
            yield from descriptions(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from descriptions(inner, path)


def list_pages() -> list[Path]:
    """Return the pages that people write; generated ones consist of descriptions."""
    found = {path for pattern in (*PAGES, "docs/decisions/*.md") for path in ROOT.glob(pattern)}
    return sorted(path for path in found if path.name != "fields.md")


def blocks_of(page: str) -> Iterator[str]:
    """Yield the paragraphs, items and cells of a page, each on one line, with `X` for code and without addresses."""
    prose = re.sub(r"^ *```.*?^ *```", "\n", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", prose))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|\||#+) )", prose):
        cells = block.split("|") if block.lstrip().startswith("|") else [block]
        yield from (" ".join(cell.split()) for cell in cells)


@cache
def all_texts() -> tuple[Text, ...]:
    return tuple(list_texts())


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.name)
def test_no_sentence_of_a_page_is_too_long(page: Path) -> None:
    assert [sentence for block in blocks_of(page.read_text()) for sentence in long_sentences_of(block)] == []


def test_texts_use_the_terms_of_the_field() -> None:
    assert len(all_texts()) > 2000
    assert [line for one in all_texts() for line in violations_of(one)] == []


def test_names_and_docstrings_of_tests_use_the_terms_of_the_field() -> None:
    texts = list(list_test_texts())

    assert len(texts) > 4000
    assert [line for one in texts for line in violations_of(one)] == []


SOURCE = '''
"""Nobody reads a docstring of a module here."""
PLAIN = "the world goes on"
SHORT = "goes on"
def work(name):
    """Nobody reads a docstring of a function here."""
    raise ValueError(f"{name} is made anew", f"the host {name!r} has {1:>{2}} steps")
@app.command()
def cli():
    """Tell what happened in the job."""
'''


def test_string_constants() -> None:
    assert [text for _, text in string_constants(SOURCE)] == [
        "Tell what happened in the job.",
        "the world goes on",
        "X is made anew",
        "the host X has X steps",
    ]


TEST_SOURCE = '''
"""A module."""
def test_a_job_goes_on(): ...
class Case:
    """A class."""
    async def test_it(self):
        """A function."""
def helper(): ...
'''


def test_texts_of_tests() -> None:
    assert [text for _, text in texts_of_tests(TEST_SOURCE) if text] == [
        "A module.",
        "test a job goes on",
        "A class.",
        "test it",
        "A function.",
    ]


PAGE = """# A heading

A paragraph of
two lines with `code of words`.

- an item
  of a list
- [a link](page.md#anchor)

| a | cell |
|---|---|

```
a command
```
"""


def test_blocks_of_a_page() -> None:
    assert [block for block in blocks_of(PAGE) if re.search(r"\w", block)] == [
        "# A heading",
        "A paragraph of two lines with X.",
        "- an item of a list",
        "- [a link]",
        "a",
        "cell",
    ]


@pytest.mark.parametrize(
    ("text", "want"),
    {
        "a phrase": ("the world goes on", ["p: 'goes on': write continue, or resume"]),
        "two": ("Nobody told it", ["p: 'Nobody': write name the subject", "p: 'told': write report, or show"]),
        "part of a word": ("a foretold bearskin", []),
        "a long sentence": (" ".join(["word"] * 26), [f"p: more than 25 words: {' '.join(['word'] * 26)}"]),
        "a list of names": (" ".join(["xla_flag"] * 26), []),
        "two sentences": (" ".join(["word"] * 25) + ". " + " ".join(["word"] * 25), []),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_violations(text: str, want: list[str]) -> None:
    assert violations_of(Text("p", text, is_message=True)) == want


def test_names_are_nouns_of_the_field() -> None:
    paths = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 700

    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}: write {BANNED_NAMES[name.strip('_')]}"
        for path in paths
        for line, name in banned_names_of(path.read_text())
    ] == []


def test_banned_names() -> None:
    source = "def told(words, *, path):\n    self._heard = [one for one in path]\n    one_host = path.news"

    assert [name for _, name in banned_names_of(source)] == ["told", "words", "_heard", "one"]
