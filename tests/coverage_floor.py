"""Whether the tests reach what they must of the packages that decide: `python -m tests.coverage_floor coverage.json`."""

import json
import sys
from pathlib import Path

__all__: list[str] = []

PACKAGES = ("devices", "scheduler", "webhook")
LINES, BRANCHES = 95.0, 90.0


def shares(report: dict[str, dict[str, dict[str, dict[str, int]]]], package: str) -> tuple[float, float]:
    """Covered lines and branches of a package, in percent."""
    totals = dict.fromkeys(("covered_lines", "num_statements", "covered_branches", "num_branches"), 0)
    for name, file in report["files"].items():
        if name.startswith(f"{package}/"):
            for key in totals:
                totals[key] += file["summary"][key]
    if not totals["num_statements"]:
        raise SystemExit(f"{package}: nothing was measured")
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    return lines, 100 * totals["covered_branches"] / max(totals["num_branches"], 1)


def main(path: str) -> int:
    """Print the shares; 1 when one is below its floor."""
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    failed = False
    for package in PACKAGES:
        lines, branches = shares(report, package)
        low = lines < LINES or branches < BRANCHES
        failed = failed or low
        verdict = f"below {LINES:g} / {BRANCHES:g}" if low else "ok"
        print(f"{package}: {lines:.1f} % of lines, {branches:.1f} % of branches, {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
