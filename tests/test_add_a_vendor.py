"""The family that the documentation adds is one file: dropped into the package's path, everything else knows it."""

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import devices.vendors
from cli.__main__ import app
from devices.config import DeviceConfig, default_config, read
from devices.ledger import Ledger
from devices.objects import quota_of
from lab.records import ScenarioDone
from lab.runner import run_scenario
from lab.scenario import read_scenario
from tests.devices.vendors.driver import admitted, filtered, refusal, registered, resources_of, text_of, world
from webhook.admission import Admission
from webhook.config import AdmissionSettings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "add-a-vendor.md").read_text(encoding="utf-8")
REGISTER = "acme.example/register"
CARDS = [
    {"id": f"acme-{n}", "index": n, "count": 4, "devmem": 32768, "devcore": 100, "type": "Acme A1", "health": True}
    for n in range(2)
]
SHARE = {"acme.example/card": 1, "acme.example/memory": 8, "acme.example/compute": 20}


def block(mark: str) -> str:
    """The fenced block below a comment."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, mark
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acme.py").write_text(block("family: acme.py"), encoding="utf-8")
    return tmp_path


@pytest.fixture
def config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceConfig]:
    """The shipped configuration of a Slotwise in whose package the file lies."""
    monkeypatch.setattr(devices.vendors, "__path__", [*devices.vendors.__path__, str(folder)])
    yield default_config()
    sys.modules.pop("devices.vendors.acme", None)


def test_without_the_file_nobody_knows_it() -> None:
    assert default_config().vendor("Acme") is None
    assert "acme" not in CliRunner().invoke(app, ["vendors"]).output


def test_it_is_listed_and_configured(config: DeviceConfig) -> None:
    vendor = config.vendor("Acme")
    assert vendor is not None
    assert config.resources >= set(SHARE)
    shown = CliRunner().invoke(app, ["vendors", "--markdown"]).output
    assert "Acme accelerators: shared by memory (GiB) and compute; pods may insist on fast cards." in shown
    assert "`limits.acme.example/memory`" in shown
    renamed = read("acme: {resourceCountName: other.example/card}").vendor("Acme")
    assert renamed is not None
    assert renamed.count_resource == "other.example/card"


def test_its_cards_are_registered_and_a_malformed_one_is_left_out(config: DeviceConfig) -> None:
    here = world(registered({REGISTER: [*CARDS, {"id": "bad", "count": "many"}]}), config=config)
    state = here.ledger.state("n1")
    assert state is not None
    assert [found.card.uuid for found in state.cards] == ["acme-0", "acme-1"]
    assert len(here.ledger.problems_of("n1")) == 1


def test_its_pods_are_admitted_and_its_annotations_protected(config: DeviceConfig) -> None:
    verdict = admitted(SHARE, config=config)
    assert resources_of(verdict)[0] == {name: str(value) for name, value in SHARE.items()}
    assert {"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"} in verdict.patch
    assert not admitted(SHARE, config=config, securityContext={"privileged": True}).allowed
    assert not admitted({**SHARE, "acme.example/memory": "some"}, config=config).allowed
    judge = Admission(AdmissionSettings(), config, Ledger(config))
    for key in ("acme.example/devices-allocated", "acme.example/devices-to-allocate", "acme.example/indexes"):
        pod = copy.deepcopy(verdict.pod)
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        metadata["annotations"] = {key: "acme-0,Acme,1,1:;"}
        refused = judge.validate(pod, "default")
        assert refused.message == f"annotation {key} is written by the system alone: remove it"


def test_its_pods_are_placed(config: DeviceConfig) -> None:
    fast = {**CARDS[0], "custominfo": {"Fast": True}}
    here = world(registered({REGISTER: [fast, CARDS[1]]}), config=config)
    first = filtered(here, SHARE)
    assert text_of(here, first, "acme.example/devices-allocated") == "acme-1,Acme,8192,20:;"
    assert text_of(here, first, "acme.example/indexes") == "1"
    wanted = {"acme.example/fast": "true"}
    second = filtered(here, SHARE, "b", annotations=wanted)
    assert text_of(here, second, "acme.example/indexes") == "0"
    two = filtered(here, {**SHARE, "acme.example/card": 2}, "c", annotations=wanted)
    assert refusal(two) == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTypeMismatch"


def test_its_pods_count_under_quota(config: DeviceConfig) -> None:
    here = world(registered({REGISTER: CARDS}), config=config)
    hard = {"limits.acme.example/memory": "12"}
    here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
    assert filtered(here, SHARE).nodes == ("n1",)
    assert here.ledger.used("default")["Acme"].memory_mib == 8192
    assert refusal(filtered(here, SHARE, "b")) == "2/2 ResourceQuotaNotFit"


@pytest.mark.usefixtures("config")
async def test_the_lab_plays_its_scenario() -> None:
    records = [r async for r in run_scenario(read_scenario(block("scenario: acme.yaml"), "docs/add-a-vendor.md"))]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    assert (done.problems, done.placed, done.refused, done.denied) == ((), 2, 1, 1)


def test_the_contract_holds_for_it(folder: Path) -> None:
    """In a process of its own: which families there are is decided as the tests are collected."""
    start = (
        "import sys, pytest, devices.vendors as v; v.__path__.append(sys.argv[1]); sys.exit(pytest.main(sys.argv[2:]))"
    )
    contract = ("-q", "-p", "no:cacheprovider", "-k", "Acme", "tests/devices/vendors/test_contract.py")
    ended = subprocess.run(
        [sys.executable, "-c", start, str(folder), *contract], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= 15
