"""`slotwise manifests` from the outside."""

import json

import yaml
from typer.testing import CliRunner

from cli.__main__ import app


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["manifests", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_an_overlay_comes_out_as_a_stream() -> None:
    status, text, _ = invoke("ha")
    assert status == 0
    documents = list(yaml.safe_load_all(text))
    assert documents[0]["kind"] == "Namespace"
    deployments = {d["metadata"]["name"]: d["spec"]["replicas"] for d in documents if d["kind"] == "Deployment"}
    assert deployments == {"slotwise-scheduler": 2, "slotwise-webhook": 2}


def test_base_is_the_default() -> None:
    assert invoke() == invoke("base")
    assert invoke()[1] != invoke("ha")[1]


def test_the_list_names_every_overlay() -> None:
    status, text, _ = invoke("--list", "--json")
    assert status == 0
    assert {"base", "ha"} <= json.loads(text).keys()
    assert all(name in invoke("--list")[1] for name in json.loads(text))


def test_an_unknown_overlay_is_refused() -> None:
    status, text, errors = invoke("haa")
    assert (status, text) == (2, "")
    assert "no overlay 'haa': there are base" in errors
