"""A family is a file of its own: it knows no other, nothing else knows it, and what several need is not written twice."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import devices.vendors
from tests.devices.vendors.samples import VENDORS

ROOT = Path(devices.vendors.__file__).parent.parent.parent
FILES = {path.stem: path for path in (ROOT / "devices" / "vendors").glob("*.py") if path.stem != "__init__"}
LARGE = {"nvidia", "ascend", "metax"}
"""Hardware with so many rules of its own that its file may be longer."""
ABOUT_150_LINES = 180
RUN = 6
"""So many equal lines of code in a row could be one piece of code."""


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }


def code_lines(path: Path) -> list[str]:
    """Lines of functions and classes: no imports, no blank ones."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            found += [line.strip() for line in lines[node.lineno - 1 : node.end_lineno] if line.strip()]
    return found


@pytest.mark.parametrize("name", sorted(set(FILES) - LARGE))
def test_a_family_needs_about_150_lines(name: str) -> None:
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= ABOUT_150_LINES


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_family_knows_no_other(name: str) -> None:
    assert [module for module in imported(FILES[name]) if module.startswith("devices.vendors")] == []


def test_the_core_knows_no_family() -> None:
    packages = ("devices", "scheduler", "webhook", "serving")
    core = [path for package in packages for path in (ROOT / package).rglob("*.py") if path not in FILES.values()]
    families = {f"devices.vendors.{name}" for name in FILES}
    assert [str(path.relative_to(ROOT)) for path in core if imported(path) & families] == []


def test_no_two_families_share_a_run_of_lines() -> None:
    runs = defaultdict(set)
    for name, path in FILES.items():
        lines = code_lines(path)
        for start in range(len(lines) - RUN + 1):
            runs[tuple(lines[start : start + RUN])].add(name)
    assert [(sorted(names), run) for run, names in runs.items() if len(names) > 1] == []


@pytest.mark.parametrize(
    "name", ["allocated", "to_allocate", "handshake", "count_resource", "memory_resource", "core_resource"]
)
def test_no_two_vendors_share_a_name(name: str) -> None:
    values = [value for vendor in VENDORS.values() if (value := getattr(vendor, name))]
    assert len(values) == len(set(values))
