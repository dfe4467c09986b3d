"""`GET /quotas` and `/quotas/{namespace}` on the plain port: reads only."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import orjson
from aiohttp import web

from devices.kube.errors import KubeError
from devices.ledger import Ledger
from webhook.admitted.record import Entry, Record, RecordError
from webhook.quota_report import namespace_report

__all__ = ["QuotaViews", "Records"]


class Records(Protocol):
    """Who knows what is admitted and not yet seen; `webhook.admitted.store.Admissions` does."""

    def held(self, namespace: str) -> Mapping[str, Entry]:
        """As last read or written, without a call."""
        ...

    async def outstanding(self, namespace: str) -> Record:
        """As stored now. Raises KubeError and RecordError."""
        ...


class QuotaViews:
    """The handlers; without `records` only what the ledger shows is shown."""

    def __init__(self, ledger: Ledger, records: Records | None = None) -> None:
        self._ledger = ledger
        self._records = records

    def routes(self) -> Iterable[web.RouteDef]:
        """What to add to an application."""
        return (web.get("/quotas", self.all), web.get("/quotas/{namespace}", self.one))

    async def all(self, request: web.Request) -> web.Response:
        """Every namespace that uses or limits anything of ours."""
        records = self._records
        reports = [
            namespace_report(self._ledger, name, records.held(name) if records is not None else {})
            for name in self._ledger.namespaces()
            if self._ledger.limit_groups(name) or self._ledger.used(name)
        ]
        return _json({"namespaces": reports})

    async def one(self, request: web.Request) -> web.Response:
        """One namespace, with the record as it is stored now; 404 for one that uses and limits nothing."""
        name = request.match_info["namespace"]
        entries: Mapping[str, Entry] = {}
        if self._records is not None and self._ledger.limit_groups(name):
            try:
                entries = (await self._records.outstanding(name)).entries
            except (KubeError, RecordError) as error:
                return web.Response(status=503, text=f"the admission record of {name} cannot be read: {error}\n")
        if not entries and name not in self._ledger.namespaces():
            return web.Response(status=404, text=f"namespace {name} has no quota and no pods with devices\n")
        return _json(namespace_report(self._ledger, name, entries))


def _json(document: object) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")
