"""`slotwise replay` as a user runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from tests.lab.replay.test_vectors import set_at, story

run = CliRunner().invoke


def write(file: Path, *documents: object) -> Path:
    file.write_text("\n".join(json.dumps(document) for document in documents), encoding="utf-8")
    return file


def test_matches(tmp_path: Path) -> None:
    result = run(app, ["replay", str(write(tmp_path / "a.json", story()))])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "1 scenarios, 1 matched, 0 differed"


def test_a_difference_is_shown_in_full_and_fails(tmp_path: Path) -> None:
    changed = set_at(story(), ("steps", 3, "expect", "GPU-a", "memory"), 1)
    write(tmp_path / "all.jsonl", story(), changed)
    result = run(app, ["replay", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path}/all.jsonl:2: every kind" in result.stdout
    assert "  step 3 usage: GPU-a memory: expected 1, came 1000" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 scenarios, 1 matched, 1 differed"


UNREADABLE = {
    "no such path": (None, "no scenario there"),
    "not JSON": ("{", "not JSON"),
    "empty file": ("", "not JSON"),
    "a list": ("[]", "expected an object"),
    "nested so deeply that it ended in a traceback": ("[" * 3000, "not JSON"),
}


@pytest.mark.parametrize(("text", "error"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_input_is_status_2(text: str | None, error: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    result = run(app, ["replay", str(file)])
    assert result.exit_code == 2
    assert error in result.stderr


def test_a_record_that_cannot_be_written_is_status_2(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", story())
    result = run(app, ["replay", str(file), "--record", str(file / "below")])
    assert result.exit_code == 2
    assert f"error: --record {file / 'below'}: cannot be written: " in result.stderr


def test_an_empty_folder_is_status_2(tmp_path: Path) -> None:
    result = run(app, ["replay", str(tmp_path)])
    assert result.exit_code == 2
    assert "no scenario there" in result.stderr


def test_one_unplayable_scenario_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path / "all.jsonl", story(), set_at(story(), ("device_config",), {"gpus": {}}))
    result = run(app, ["replay", str(tmp_path)])
    assert result.exit_code == 2
    assert "section gpus has no effect" in result.stderr
    assert result.stdout.splitlines()[-1] == "2 scenarios, 1 matched, 1 differed"


def test_record_writes_beside_never_over_the_input(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    changed = set_at(story(), ("steps", 3, "expect", "GPU-a", "memory"), 1)
    write(source / "deep" / "a.json", changed)
    write(source / "b.jsonl", changed, story())
    before = {file: file.read_bytes() for file in source.rglob("*.json*")}
    out = tmp_path / "out"
    assert run(app, ["replay", str(source), "--record", str(out)]).exit_code == 1
    assert {file: file.read_bytes() for file in source.rglob("*.json*")} == before
    assert run(app, ["replay", str(out)]).stdout.splitlines()[-1] == "3 scenarios, 3 matched, 0 differed"
    assert (out / "deep" / "a.json").exists()
    assert run(app, ["replay", str(source), "--record", str(source)]).exit_code == 2
    assert {file: file.read_bytes() for file in source.rglob("*.json*")} == before
