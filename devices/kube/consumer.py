"""What a reflector stands between: where objects are read, and who holds them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol, TypeVar

from devices.kube.client import Page, WatchEvent
from devices.kube.resources import Resource
from devices.kube.seen import SeenObject

__all__ = ["Consumer", "ListWatch"]

T_contra = TypeVar("T_contra", contravariant=True)


class Consumer(Protocol[T_contra]):
    """Who holds the objects. Called on the event loop, never concurrently; must not block.

    An exception from `put` or `delete` is logged and counted, and the next full list offers the object again.
    """

    def known(self) -> Mapping[str, object]:
        """What is held, by UID; values are not looked at. Read at every full list after the first."""
        ...

    def replace(self, items: Sequence[T_contra]) -> None:
        """Hold exactly `items`: the first list."""
        ...

    def put(self, item: T_contra) -> None:
        """Hold `item` in place of any older one of its UID."""
        ...

    def delete(self, gone: SeenObject) -> None:
        """Let go of the object of this UID; one that is not held is no error.

        Namespace and name are empty where only `known()` had the UID.
        """
        ...


class ListWatch(Protocol):
    """The two reads of `KubeClient` that a reflector needs."""

    def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        limit: int = 500,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[Page]:
        """As `KubeClient.list_pages`."""
        ...

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        timeout_s: float,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[WatchEvent]:
        """As `KubeClient.watch`."""
        ...
