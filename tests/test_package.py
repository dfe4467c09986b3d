"""What an installation contains: a package or a data file that is forgotten shows only outside of a checkout."""

import configparser
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_INSTALLED = {"tests", "docs", "build", "dist"}


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def packages() -> set[str]:
    found = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/__init__.py")}
    return {
        ".".join(path.parts)
        for path in found
        if path.parts[0] not in NOT_INSTALLED and not path.parts[0].startswith(".")
    }


def test_every_package_is_installed() -> None:
    patterns = setup()["options.packages.find"]["include"].split()
    assert {name for name in packages() if not any(fnmatchcase(name, pattern) for pattern in patterns)} == set()
    assert packages() >= {"certs", "cli", "devices.vendors", "devices.kube", "lab.apiserver", "scheduler", "webhook"}


@pytest.mark.parametrize(("package", "folder"), [("lab", "scenarios"), ("manifests", "")])
def test_data_files_are_installed(package: str, folder: str) -> None:
    patterns = setup()["options.package_data"][package].split()
    found = [
        path
        for path in (ROOT / package / folder).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".typed"}
    ]
    assert found
    for path in found:
        assert any(path.relative_to(ROOT / package).match(pattern) for pattern in patterns), path


def test_folders_of_code_are_packages() -> None:
    """A folder without `__init__.py` would be left out of the installation without a word."""
    for top in ("certs", "cli", "devices", "lab", "manifests", "scheduler", "serving", "webhook"):
        for path in (ROOT / top).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path
