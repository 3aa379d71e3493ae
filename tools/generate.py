"""Generate files: the CRD, lists of the chart, the references of fields and metrics, and the list of JAX options.

`python tools/generate.py` writes the files. With `--check` it compares them instead, and fails with the difference.
"""

import difflib
import sys
from pathlib import Path

import yaml
from chart_values import render_required
from jax_options import render_options

from trainingjob_api.schema import make_crd
from trainingjob_operator.cli.fields_page import render_page
from trainingjob_operator.shell.metric_declarations import render_metrics_page

ROOT = Path(__file__).parent.parent
CRD_FILES = (ROOT / "crds/trainingjob.yaml", ROOT / "charts/trainingjob/files/trainingjob-crd.yaml")
JAX_OPTIONS = ROOT / "operator/trainingjob_operator/core/validation/jax_options.py"
FIELDS_PAGE = ROOT / "docs/fields.md"
METRICS_PAGE = ROOT / "docs/metrics.md"
VALUES = ROOT / "charts/trainingjob/values.yaml"
REQUIRED_VALUES = ROOT / "charts/trainingjob/files/required-values.txt"
HEADER = "# Made by `make generate` from crds/trainingjob_api; do not edit.\n"


def render() -> str:
    """Return the text of the CRD files."""
    return HEADER + yaml.dump(make_crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def main(arguments: list[str]) -> int:
    """Write or compare the files; return the exit code."""
    texts = {
        **dict.fromkeys(CRD_FILES, render()),
        FIELDS_PAGE: render_page(),
        METRICS_PAGE: render_metrics_page(),
        JAX_OPTIONS: render_options(),
        REQUIRED_VALUES: render_required(yaml.safe_load(VALUES.read_text())),
    }
    if arguments not in ([], ["--check"]):
        print(f"usage: {sys.argv[0]} [--check]", file=sys.stderr)
        return 2
    if not arguments:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    stale = {path: text for path, text in texts.items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        before = path.read_text().splitlines() if path.exists() else []
        name = str(path.relative_to(ROOT))
        print(*difflib.unified_diff(before, text.splitlines(), name, "the models", lineterm=""), sep="\n")
        print(f"{name} does not agree with the models. Run: make generate", file=sys.stderr)
    return 1 if stale else 0


class _Dumper(yaml.CSafeDumper):
    """A YAML dumper without anchors, which the API server does not support."""

    def ignore_aliases(self, data: object) -> bool:
        """Disable aliases."""
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
