"""Runs an example as its first lines say, with records of its own."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str, *arguments: str, data_dir: Path, answers: str = "", **environment: str
) -> str:
    """What it printed. `answers` is what the person at the terminal types."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "RUNNER_DATA_DIR": str(data_dir), **environment},
        input=answers,
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
