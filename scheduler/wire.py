"""The extender protocol on the wire: keys capitalised as Kubernetes spells them, read in any case, always all written.

Upstream: k8s.io/kube-scheduler, package `extender/v1`.
"""

from collections.abc import Sequence
from typing import Final, TypedDict

import msgspec
import orjson

from devices.objects import Node, Pod, node_of, pod_of
from scheduler.bind import BindRequest
from scheduler.engine import Filtered
from scheduler.errors import RequestError
from scheduler.failed_nodes import FailedNodes
from scheduler.names import OfferedNames

__all__ = [
    "BindingResult",
    "FilterArgs",
    "FilterDecoder",
    "FilterResult",
    "HostPriority",
    "decode_bind",
    "decode_filter",
    "encode_filter",
    "failed_filter",
]


Written = dict[str, str] | orjson.Fragment
"""A JSON object, or one that is written already."""


class FilterResult(TypedDict):
    """`ExtenderFilterResult`, for `orjson` to write."""

    Nodes: object
    NodeNames: list[str] | None
    FailedNodes: Written | None
    FailedAndUnresolvableNodes: Written | None
    Error: str


class BindingResult(TypedDict):
    """`ExtenderBindingResult`."""

    Error: str


class HostPriority(TypedDict):
    """One row of a `HostPriorityList`."""

    Host: str
    Score: int


class FilterArgs(msgspec.Struct, frozen=True):
    """`ExtenderArgs`: the pod, and the offered nodes by name or whole. `items` are the nodes as they came."""

    pod: Pod
    names: Sequence[str] | None
    nodes: tuple[Node, ...] | None
    items: tuple[object, ...] = ()


_NULL: Final = msgspec.Raw(b"null")


class _Exact(msgspec.Struct):
    """The form kube-scheduler sends: decoded without ever building the pod's other fields."""

    pod: Pod | None = msgspec.field(name="Pod", default=None)
    nodes: msgspec.Raw = msgspec.field(name="Nodes", default=_NULL)
    names: list[str] | None = msgspec.field(name="NodeNames", default=None)


_EXACT = msgspec.json.Decoder(_Exact)


def _loads(body: bytes) -> dict[str, object]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"cannot decode the request: {error}") from error
    if not isinstance(document, dict):
        raise RequestError(f"cannot decode the request: expected a JSON object, got {type(document).__name__}")
    return {key.lower(): value for key, value in document.items()}


def _node_list(value: object) -> tuple[tuple[Node, ...], tuple[object, ...]]:
    items = value.get("items", value.get("Items")) if isinstance(value, dict) else None
    if items is None:
        items = []
    if not isinstance(value, dict) or not isinstance(items, list):
        raise RequestError("Nodes: expected a NodeList with items")
    nodes = tuple(node_of(item) for item in items)
    if not all(node.name for node in nodes):
        raise RequestError("Nodes: every item needs a metadata.name")
    return nodes, tuple(items)


def decode_filter(body: bytes) -> FilterArgs:
    """`ExtenderArgs` from its JSON. Raises `RequestError` with the text that goes into `Error`."""
    try:
        exact = _EXACT.decode(body)
        pod, names = exact.pod, exact.names
        nodes: tuple[Node, ...] | None = None
        items: tuple[object, ...] = ()
        whole = bytes(exact.nodes)
        if whole != b"null":
            nodes, items = _node_list(orjson.loads(whole))
        if pod is None or (names is None and nodes is None):
            # Another case of the keys, or really missing: look again, leniently.
            fields = _loads(body)
            pod = pod_of(fields["pod"]) if fields.get("pod") is not None else None
            if fields.get("nodenames") is not None:
                names = msgspec.convert(fields["nodenames"], list[str])
            if fields.get("nodes") is not None:
                nodes, items = _node_list(fields["nodes"])
    except (msgspec.DecodeError, UnicodeError, orjson.JSONDecodeError, RecursionError) as error:
        raise RequestError(f"cannot decode the request: {error}") from error
    if pod is None:
        raise RequestError("extender args missing pod")
    if names is None and nodes is None:
        raise RequestError("extender args missing nodes: expected NodeNames or Nodes")
    return FilterArgs(pod, tuple(names) if names is not None else None, nodes, items)


_NAMES = b',"Nodes":null,"NodeNames":['
_NAME_LIST = msgspec.json.Decoder(list[str])


class FilterDecoder:
    """`decode_filter` for calls that name the same nodes again: names that end a request as they ended one before are not read again.

    Equal ends then have the same names. kube-scheduler writes the names last; whatever is in any other form is read as a whole.
    """

    _KEPT = 4

    def __init__(self) -> None:
        self._ends: list[tuple[bytes, Sequence[str]]] = []

    def decode(self, body: bytes) -> FilterArgs:
        """What `decode_filter` answers, or raises."""
        for number, (end, names) in enumerate(self._ends):
            if body.endswith(end):
                pod = _pod_before(body, len(body) - len(end))
                if pod is None:
                    break
                if number:
                    self._ends.insert(0, self._ends.pop(number))
                return FilterArgs(pod, names, None)
        return self._new_end(body) or decode_filter(body)

    def _new_end(self, body: bytes) -> FilterArgs | None:
        """Read both parts of a request in kube-scheduler's form, None for any other."""
        at = body.find(_NAMES)
        if at < 0 or body[-1:] != b"}" or (pod := _pod_before(body, at)) is None:
            return None
        written = body[at + len(_NAMES) - 1 : -1]
        names: Sequence[str]
        try:
            names = OfferedNames(written)
        except ValueError:
            try:
                names = tuple(_NAME_LIST.decode(written))
            except (msgspec.DecodeError, UnicodeError):
                return None
        self._ends = [(body[at:], names), *self._ends[: self._KEPT - 1]]
        return FilterArgs(pod, names, None)


def _pod_before(body: bytes, end: int) -> Pod | None:
    """The pod, where what stands before `end` lacks but a brace: only then does what follows belong to the outermost object."""
    try:
        return _EXACT.decode(body[:end] + b"}").pod
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def decode_bind(body: bytes) -> BindRequest:
    """`ExtenderBindingArgs` from its JSON. Raises `RequestError`."""
    fields = _loads(body)

    def text(key: str) -> str:
        value = fields.get(key.lower())
        if not isinstance(value, str) or not value:
            raise RequestError(f"binding args: {key} must be a text that is not empty, got {value!r}")
        return value

    return BindRequest(text("PodNamespace"), text("PodName"), text("PodUID"), text("Node"))


def failed_filter(error: str) -> FilterResult:
    """Only `Error` set."""
    return {"Nodes": None, "NodeNames": None, "FailedNodes": None, "FailedAndUnresolvableNodes": None, "Error": error}


def encode_filter(filtered: Filtered, args: FilterArgs, every_refusal: bool = False) -> FilterResult:
    """The answer in the form asked: names for names, a node list for whole nodes.

    With a node found the refusals stay out, as recorded, unless `every_refusal` asks for them (simulations).
    """
    if filtered.error:
        return failed_filter(filtered.error)
    result = failed_filter("")
    if filtered.nodes is not None:
        if args.nodes is not None:
            result["Nodes"] = {"metadata": {}, "items": _chosen(filtered.nodes, args)}
        else:
            result["NodeNames"] = list(filtered.nodes)
    if filtered.nodes is None or every_refusal:
        result["FailedNodes"], result["FailedAndUnresolvableNodes"] = _refusals(filtered)
    return result


def _refusals(filtered: Filtered) -> tuple[Written, Written | None]:
    """Nodes that may fit once cards are freed, and those that will not."""
    failed = filtered.failed or {}
    if isinstance(failed, FailedNodes):
        lost = failed.unresolvable
        return orjson.Fragment(failed.resolvable.json()), orjson.Fragment(lost.json()) if lost else None
    hopeless = dict(filtered.unresolvable or {})
    return {name: text for name, text in failed.items() if name not in hopeless}, hopeless or None


def _chosen(names: Sequence[str], args: FilterArgs) -> list[object]:
    by_name = {node.name: item for node, item in zip(args.nodes or (), args.items, strict=True)}
    return [by_name[name] for name in names if name in by_name]
