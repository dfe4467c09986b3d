"""The lab's webhook configurations are those of the manifests."""

from base64 import b64decode

from devices.admission_objects import Document, admission_documents
from devices.config import default_config
from lab.webhooks import embedded_configurations, webhook_configurations

CONFIG = default_config()


def hooks(document: Document) -> list[Document]:
    found = document["webhooks"]
    assert isinstance(found, list)
    return found


def without(hook: Document, *keys: str) -> Document:
    return {key: value for key, value in hook.items() if key not in keys}


def test_only_the_address_differs() -> None:
    files = admission_documents(CONFIG)
    shipped = [document for name in ("mutating.yaml", "validating.yaml") for document in files[name]]
    made = webhook_configurations(CONFIG, "https://127.0.0.1:1", b"pem")
    assert [resource.plural for resource, _ in made] == [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ]
    for (_, document), original in zip(made, shipped, strict=True):
        assert without(document, "webhooks") == without(original, "webhooks")
        for hook, was in zip(hooks(document), hooks(original), strict=True):
            assert without(hook, "clientConfig") == without(was, "clientConfig")
            client = hook["clientConfig"]
            assert isinstance(client, dict)
            assert client["url"] in ("https://127.0.0.1:1/webhook", "https://127.0.0.1:1/validate")
            assert b64decode(client["caBundle"]) == b"pem"


def test_the_embedded_server_gets_what_it_can_do() -> None:
    made = [hook for _, document in embedded_configurations(CONFIG, "https://x", b"") for hook in hooks(document)]
    assert [hook["name"] for hook in made] == ["vgpu.hami.io", "validate.slotwise.io"]
    assert all("matchConditions" not in hook for hook in made)
