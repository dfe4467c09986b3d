"""The extender as kube-scheduler calls it: names out, names back (HAMi v2.10 wire contract: extender protocol)."""

from collections.abc import Sequence

import aiohttp
import msgspec
import orjson

__all__ = ["ExtenderClient", "ExtenderError", "FilterAnswer"]


class ExtenderError(Exception):
    """A call failed, or its answer says so; the text is what kube-scheduler would show."""


class FilterAnswer(msgspec.Struct, rename="pascal", frozen=True):
    """What `/filter` answers to names."""

    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class _BindAnswer(msgspec.Struct, rename="pascal", frozen=True):
    error: str = ""


class ExtenderClient:
    """Calls one extender over kept-alive connections. `url` has no trailing slash."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._filter_answers = msgspec.json.Decoder(FilterAnswer)
        self._bind_answers = msgspec.json.Decoder(_BindAnswer)

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def filter(self, pod: bytes, nodes: Sequence[str]) -> FilterAnswer:
        """The answer to a pod (its JSON) and node names. Raises `ExtenderError`."""
        body = orjson.dumps({"Pod": orjson.Fragment(pod), "Nodes": None, "NodeNames": nodes})
        raw = await self._post("filter", body)
        try:
            answer = self._filter_answers.decode(raw)
        except msgspec.MsgspecError as error:
            raise ExtenderError(f"the answer of {self._url}/filter cannot be read: {error}") from error
        if answer.error:
            raise ExtenderError(answer.error)
        offered = set(nodes)
        for name in answer.node_names or ():
            if name not in offered:
                raise ExtenderError(f'extender "{self._url}" claims a filtered node "{name}" which was not offered')
        return answer

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Have the pod bound. Raises `ExtenderError`."""
        body = orjson.dumps({"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node})
        raw = await self._post("bind", body)
        try:
            answer = self._bind_answers.decode(raw)
        except msgspec.MsgspecError as error:
            raise ExtenderError(f"the answer of {self._url}/bind cannot be read: {error}") from error
        if answer.error:
            raise ExtenderError(answer.error)

    async def _post(self, verb: str, body: bytes) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Of https no certificate is checked, as in HAMi's configuration: the extender is in the same pod.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=90, ssl=False),
                timeout=self._timeout,
            )
        address = f"{self._url}/{verb}"
        try:
            async with self._session.post(address, data=body, headers={"Content-Type": "application/json"}) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ExtenderError(f'Post "{address}": {str(error) or type(error).__name__}') from error
        if response.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {address}, code {response.status}")
        return raw
