"""The operator's list of JAX's variables and XLA's flags is that of the JAX that is installed."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "operator/jax_options.py"


def test_the_list_of_options_is_fresh() -> None:
    ended = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
