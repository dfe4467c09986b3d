"""Rendered objects as settings see them: found by what they are, or an error that says what this overlay lacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import yaml

from manifests.documents import Document, identity, mapping, read_stream, sequence
from manifests.errors import ManifestError

__all__ = ["EXTENDER", "KUBE_SCHEDULER", "OUR_IMAGE", "SCHEDULER", "WEBHOOK", "Objects", "inside", "without_empty"]

WEBHOOK: Final = "webhook"
SCHEDULER: Final = "scheduler"
EXTENDER: Final = "extender"
KUBE_SCHEDULER: Final = "kube-scheduler"
_POD_OF: Final[Mapping[str, str]] = {WEBHOOK: WEBHOOK, EXTENDER: SCHEDULER, KUBE_SCHEDULER: SCHEDULER}
OUR_IMAGE: Final = "slotwise"
"""Name, without its tag, of the image that the files name."""


def inside(document: Document, *path: str) -> Document:
    """The mapping at this path; what is not there yet is made. Raises `ManifestError` where something else stands."""
    for key in path:
        document = mapping(document.setdefault(key, {}), key)
    return document


def without_empty(document: Document, key: str, value: object) -> None:
    """Put a value, or take the key away where there is nothing to say."""
    if value:
        document[key] = value
    else:
        document.pop(key, None)


class Objects:
    """The documents of an overlay, to be changed in place."""

    def __init__(self, overlay: str, documents: Sequence[Document]) -> None:
        self.documents = list(documents)
        self._overlay = overlay

    def of(self, *kinds: str) -> list[Document]:
        """Every object of these kinds. Raises `ManifestError` where there is none."""
        found = [document for document in self.documents if document.get("kind") in kinds]
        if not found:
            raise ManifestError(f"overlay {self._overlay} has no {' or '.join(kinds)}")
        return found

    def one(self, kind: str, name: str) -> Document:
        """The object. Raises `ManifestError` where it is not in this overlay."""
        for document in self.documents:
            found = identity(document, self._overlay)
            if (found.kind, found.name) == (kind, name):
                return document
        raise ManifestError(f"overlay {self._overlay} has no {kind} {name}")

    def spec(self, kind: str, name: str) -> Document:
        """Its `spec`."""
        return inside(self.one(kind, name), "spec")

    def deployment(self, component: str) -> Document:
        """`spec` of the Deployment of webhook or scheduler."""
        return self.spec("Deployment", f"slotwise-{component}")

    def pod_templates(self) -> list[Document]:
        """The templates of all Deployments."""
        return [inside(document, "spec", "template") for document in self.of("Deployment")]

    def pod_specs(self) -> list[Document]:
        """Their `spec`."""
        return [inside(template, "spec") for template in self.pod_templates()]

    def containers(self) -> Iterator[Document]:
        """The containers of all Deployments."""
        for spec in self.pod_specs():
            for container in sequence(spec.get("containers"), "containers"):
                yield mapping(container, "containers")

    def container(self, name: str) -> Document:
        """One of webhook, extender and kube-scheduler."""
        spec = inside(self.deployment(_POD_OF[name]), "template", "spec")
        for container in sequence(spec.get("containers"), "containers"):
            if mapping(container, "containers").get("name") == name:
                return mapping(container, "containers")
        raise ManifestError(f"overlay {self._overlay} has no container {name}")

    def put_flag(self, container: str, flag: str, value: str | None) -> None:
        """`--flag=value` in place of what the container has for it, else at the end; None takes the flag away."""
        arguments = sequence(self.container(container).setdefault("args", []), "args")
        places = [at for at, text in enumerate(arguments) if str(text).partition("=")[0] == flag]
        for at in reversed(places[1:] if value is not None else places):
            del arguments[at]
        if value is not None:
            arguments[places[0] if places else len(arguments) : places[0] + 1 if places else len(arguments)] = [
                f"{flag}={value}"
            ]

    def has_flag(self, container: str, flag: str) -> bool:
        """Whether the container is started with it."""
        arguments = sequence(self.container(container).get("args") or [], "args")
        return any(str(text).partition("=")[0] == flag for text in arguments)

    def edit_text(self, config_map: str, key: str, edit: Callable[[Document], None]) -> None:
        """Change the YAML document that a ConfigMap holds; its comments stay only while nothing changes."""
        data = inside(self.one("ConfigMap", config_map), "data")
        [document] = read_stream(str(data[key]), key)
        edit(document)
        if [document] != read_stream(str(data[key]), key):
            data[key] = yaml.safe_dump(document, sort_keys=False, width=10**6)

    def kube_scheduler(self, edit: Callable[[Document], None]) -> None:
        """Change the KubeSchedulerConfiguration."""
        self.edit_text("slotwise-kube-scheduler", "kube-scheduler.yaml", edit)

    def hooks(self, *kinds: str) -> list[Document]:
        """Every webhook of the configurations of these kinds."""
        listed = (sequence(document.get("webhooks"), "webhooks") for document in self.of(*kinds))
        return [mapping(hook, "webhooks") for hooks in listed for hook in hooks]

    def policy(self) -> Document:
        """The parameters of the admission policy."""
        return inside(self.one("ConfigMap", "slotwise-policy"), "data")
