"""`judge` for real: verdicts in the order of the files, whatever became of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BAD = Path(__file__).parents[1] / "bad"


def test_verdicts_come_in_the_order_of_the_files() -> None:
    files = [str(BAD / name) for name in ("good.py", "absent.py", "syntax_error.py")]
    command = [sys.executable, "-m", "kernelpro", "judge", str(BAD / "task.py"), *files, "--target", "cpu", "--quick", "--json"]
    done = subprocess.run([*command, "--baseline", "eager_fp32"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert [json.loads(line)["candidate"] for line in done.stdout.splitlines()] == files
