"""What the documentation names exists."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from trainingjob_api.fields import all_fields
from trainingjob_api.protocol import FailureReason
from trainingjob_operator.core.node_signals import BUILTIN_SIGNALS
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.conditions import CONDITION_TYPES
from trainingjob_operator.core.report.situation import Stage

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/troubleshooting.md"
FAULTS = ROOT / "docs/faults.md"
FEATURES = ROOT / "docs/features.md"
ELASTICITY = ROOT / "docs/elasticity.md"
BAD_INPUTS = ROOT / "docs/bad-inputs.md"
GUIDES = tuple(sorted((ROOT / "docs").glob("adding-*.md")))
WRITTEN = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "fields.md"),
)
"""Pages that are not generated."""
PAGES = (*WRITTEN, ROOT / "docs/fields.md")
FOLDERS = ("charts", "crds", "docs", "e2e", "operator", "tests", "tools", "trainer")
OUTSIDE = frozenset(
    (
        "jax-cache/",
        "kopf/on.py",
        "programs/",
        "stacks/",
        "tests/aot_test.py",
        "trainingjob.dev/v1alpha1",
        "trainingjob.dev/v1beta1",
        *(signal.key for signal in BUILTIN_SIGNALS),
    )
)
"""What reads like a path and is none of this repository: files of kopf and JAX, folders of jobs, versions, signals."""
TEST = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)(?:::(\w+))?`")
PRODUCERS = sorted({found for page in (PAGE, FAULTS, FEATURES, *GUIDES) for found in TEST.findall(page.read_text())})


@pytest.mark.parametrize(("path", "name"), PRODUCERS, ids=[name or path for path, name in PRODUCERS])
def test_each_situation_is_produced_by_a_test_that_there_is(path: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists()


def test_each_situation_names_what_produces_it() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what |")]

    assert len(rows) >= 25
    assert all(re.search(r"`(tests|e2e)/[^`]+` \|$", row) for row in rows)


def test_each_reason_on_the_page_for_on_call_is_one_of_the_code() -> None:
    known = {*Reason, *FailureReason, *Stage, *CONDITION_TYPES}
    rows = re.findall(r"^\| (?!what \|).*? \| (.*?) \| (.*?) \| .* \| `[\w/.:]+` \|$", PAGE.read_text(), re.MULTILINE)
    named = {word for cells in rows for cell in cells for word in re.findall(r"`([A-Z][A-Za-z]+)`", cell)}

    assert len(named) >= 30
    assert sorted(named - known) == []


def test_bad_inputs_are_those_of_the_tests() -> None:
    rows = re.findall(r"^\| (.*) \| (.*) \| `(tests/[\w/.]+)` \|$", BAD_INPUTS.read_text(), re.MULTILINE)
    texts = {path: (ROOT / path).read_text() for path in {path for _, _, path in rows}}
    problems = {
        (name, case["problems"][0])
        for path, text in texts.items()
        if path.endswith(".yaml")
        for name, case in yaml.safe_load(text).items()
        if case.get("problems")
    }

    assert len(rows) >= 70
    for case, message, path in rows:
        if path.endswith(".yaml"):
            assert (case, message) in problems
        else:
            assert f'"{case.rpartition(": ")[0]}": Refusal(' in texts[path]
            assert f'"{message}"' in texts[path]


def test_fields_of_features_exist() -> None:
    fields = {".".join(location) for location in all_fields()}
    columns = [row.split(" | ")[1] for row in FEATURES.read_text().splitlines() if row.endswith("` |")]
    named = {name for column in columns for name in re.findall(r"`([a-z][\w.]*)`", column)}

    assert len(columns) >= 70
    assert sorted(named - fields) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text()):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in list_anchors(found), f"{target}#{anchor}"


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_paths_in_back_ticks_exist(page: Path) -> None:
    paths = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.py))`|`([\w.-]+(?:/[\w.-]+)+)`", page.read_text()))
    named = {one or other for one, other in paths} - OUTSIDE

    assert sorted(path for path in named if not is_in_repository(path)) == []


@pytest.mark.parametrize(
    ("path", "want"),
    {
        "a file": ("operator/trainingjob_operator/core/names.py", True),
        "a file below a package": ("core/names.py", True),
        "a file by its name": ("names.py", True),
        "a module": ("core/names", True),
        "a folder": ("core/planner/", True),
        "folders left out": ("trainer/.../optim/factory.py", True),
        "folders left out of another package": ("crds/.../optim/factory.py", False),
        "the end of a name": ("ore/names.py", False),
        "a file that moved": ("core/running/names.py", False),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_is_in_repository(path: str, want: bool) -> None:
    assert is_in_repository(path) is want


def is_in_repository(path: str) -> bool:
    """Return whether a path, or its end, is a file, a folder or a module of the repository; `...` is any folders."""
    parts = (re.escape(part) for part in path.rstrip("/").split("/.../"))
    return re.search(rf"(?:^|/){'/(?:.*/)?'.join(parts)}(?:\.py)?$", repository_paths(), re.MULTILINE) is not None


@cache
def repository_paths() -> str:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts)
    return "\n".join((*FOLDERS, *(str(path.relative_to(ROOT)) for path in found)))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guides_name_files_that_there_are_and_the_index_links_them(page: Path) -> None:
    files = find_files(page)

    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert f"({page.name})" in (ROOT / "docs/index.md").read_text()


def find_files(page: Path) -> list[str]:
    return re.findall(r"`((?:crds|operator|trainer|tests|e2e|tools)/[\w./-]*)(?:::\w+)?`", page.read_text())


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_names_of_code_in_a_guide_occur_in_the_files_that_it_names(page: Path) -> None:
    folders = {path if path.is_dir() else path.parent for path in (ROOT / name for name in find_files(page))}
    text = "".join(path.read_text() for folder in folders for path in folder.glob("*.*") if path.is_file())
    names = re.findall(r"`(\w*(?:_|[a-z][A-Z])\w*)(?:\([\w, ]*\))?`", page.read_text())

    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_guides_name_the_files_in_order_and_the_tests(page: Path) -> None:
    headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)

    assert {"Files to edit, in order", "Tests"} <= set(headings)


def test_each_upgrade_by_helm_keeps_the_user_s_values() -> None:
    """Without the flag, `--set` resets all other values; `--reuse-values` leaves out the defaults of new values."""
    pages = [*PAGES, *(ROOT / "charts").rglob("*.md"), *(ROOT / "charts").rglob("*.txt")]
    commands = [
        (page.name, line) for page in pages for line in re.findall(r"helm upgrade (?!`)[^`\n]*", page.read_text())
    ]

    assert len(commands) >= 5
    assert [command for command in commands if "--reset-then-reuse-values" not in command[1]] == []


def test_no_page_changes_an_object_of_the_chart_with_kubectl() -> None:
    """Helm 4 rejects the next upgrade if kubectl has changed one of its fields."""
    pages = [*PAGES, *(ROOT / "charts").rglob("*.md"), *(ROOT / "charts").rglob("*.txt")]
    pattern = (
        r"kubectl (?:patch|edit|apply|scale|set|annotate|label|replace)\b[^`\n]*trainingjob-(?:system|operator)[^`\n]*"
    )

    assert [command for page in pages for command in re.findall(pattern, page.read_text())] == []


def test_the_page_about_elasticity_lists_the_builtin_node_signals() -> None:
    rows = re.findall(r"^\| [\w ]+ \| ((?:taint|label|condition)s? .*) \|$", ELASTICITY.read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    signals = [text for signal in BUILTIN_SIGNALS for text in (signal.key, signal.value) if text]

    assert sorted(listed) == sorted(signals)


def test_the_readme_shows_the_plan_that_the_command_prints() -> None:
    name = "tpu-v5p-4-slices"
    command = f"$ trainingjob plan crds/examples/{name}.yaml\n"
    shown = (ROOT / "README.md").read_text().partition(command)[2].partition("```")[0].splitlines()
    printed = (ROOT / f"tests/golden/cli/{name}.txt").read_text().splitlines()

    assert len(shown) > 10
    assert [line for line in shown if line not in printed] == []
