"""The example of BatchNorm shows what it says: robust in every way, and one remark on the one beyond the theory."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_way_is_more_robust_than_erm_and_one_is_remarked_on() -> None:
    answer = subprocess.run(
        [sys.executable, "examples/batchnorm.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = re.findall(r"^(\S+) +([\d.]+)% +([\d.]+)%$", answer.stdout, re.MULTILINE)
    clean, attacked = ({name: float(row[i]) for name, *row in rows} for i in (0, 1))
    assert [*clean] == ["ERM", "ascent-eval", "frozen", "GroupNorm"]
    assert max(clean.values()) < 8
    assert all(attacked[name] < attacked["ERM"] - 3 for name in attacked if name != "ERM")
    before, after = answer.stdout.split("\nfrozen")
    assert before.count("outside the theory") == 1
    assert "outside the theory" not in after + answer.stderr
