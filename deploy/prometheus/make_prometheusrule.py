"""Writes prometheusrule.yaml from rules.yml: the same groups, as the resource that the Prometheus operator reads.

With --check nothing is written, and the exit status is 1 when the file is not what it would be.
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
MADE = FOLDER / "prometheusrule.yaml"

HEAD = """\
# Made from rules.yml by make_prometheusrule.py; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: turnstore
spec:
"""


def main() -> int:
    """The exit status."""
    _, _, groups = (FOLDER / "rules.yml").read_text().partition("\ngroups:\n")
    text = HEAD + "".join(f"  {line}\n" if line else "\n" for line in ["groups:", *groups.splitlines()])
    if sys.argv[1:] == ["--check"]:
        return 0 if MADE.read_text() == text else 1
    MADE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
