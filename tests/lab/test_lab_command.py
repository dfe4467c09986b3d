import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.lab import app
from lab.scenario import scenario_groups

SMALL = """\
name: small
title: A small one
nodes: [{name: node-1, cards: [GPU-A, GPU-B]}]
pod: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}
steps:
- create: {name: a}
  expect: {cards: [GPU-B]}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_list_names_what_is_shipped() -> None:
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "burst",
        "four-cards",
        "mixed",
        "mutex",
        "numa",
        "privileged",
        "quota",
        "shares",
        *scenario_groups()["vendors"],
    ]
    assert [entry["name"] for entry in json.loads(run("list", "--json")[1])] == [
        line.split()[0] for line in out.splitlines()
    ]


def test_file_of_the_users_own(small: Path) -> None:
    code, out, _ = run(small)
    assert code == 0
    assert "a → node-1 GPU-B,NVIDIA,1000,0:;" in out
    assert out.splitlines()[-1].startswith("1 scenario, 1 passed, 0 failed")


def test_names_and_files_together_as_json(small: Path) -> None:
    code, out, _ = run("--json", "privileged", small)
    document = json.loads(out)
    assert code == 0
    assert document["passed"] is True
    assert [scenario["scenario"] for scenario in document["scenarios"]] == ["privileged", "small"]


def test_a_group_stands_for_its_scenarios(small: Path) -> None:
    code, out, _ = run("--json", "vendors", small)
    document = json.loads(out)
    assert code == 0, document
    assert [scenario["scenario"] for scenario in document["scenarios"]] == [*scenario_groups()["vendors"], "small"]


def test_unmet_expectation_is_exit_status_1(small: Path) -> None:
    small.write_text(SMALL.replace("[GPU-B]", "[GPU-A]"), encoding="utf-8")
    code, out, _ = run(small)
    assert code == 1
    assert "FAILED small: step 1: cards: expected ['GPU-A'], got ['GPU-B']" in out


def test_unknown_name_is_exit_status_2() -> None:
    code, out, err = run("mutexes")
    assert code == 2
    assert out == ""
    assert "no scenario 'mutexes': neither a file nor one of burst, four-cards," in err
    assert err.rstrip().endswith(", vendors")


def test_malformed_file_is_exit_status_2(small: Path) -> None:
    small.write_text(SMALL + "  extra: 1\n", encoding="utf-8")
    code, _, err = run("privileged", small)
    assert code == 2
    assert f"{small}:8: steps[0].extra: unknown key" in err


def test_burst_as_json() -> None:
    code, out, _ = run("burst", "--nodes", 2, "--cards", 2, "--pods", 30, "--gpumem", 1000, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["placed"], document["lost"], document["writes_per_pod"]) == (30, 0, 1.0)
    assert document["violations"] == []
    assert document["per_second"] > 0


def test_burst_of_nothing_is_a_usage_error() -> None:
    code, _, err = run("burst", "--pods", 0)
    assert code == 2
    assert "--pods" in err


def test_help_names_commands_and_scenarios() -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("burst", "list", "run", "NAME"))


def test_keep_leaves_a_cluster_until_interrupted(small: Path) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heard}; from cli.lab import app; app()", str(small), "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = [process.stderr.readline() for _ in range(2)]
            assert lines[0] == "The cluster of small runs until Ctrl-C. Look at it, or create pods in it, with\n"
            url = lines[1].split()[2]
            with urllib.request.urlopen(f"{url}/api/v1/nodes") as answer:
                assert [node["metadata"]["name"] for node in json.load(answer)["items"]] == ["node-1"]
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
