"""`slotwise quota`: what namespaces may use and use, and whether a pod would be let in."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import aiohttp
import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from devices.config import DeviceConfig, default_config, load
from devices.errors import DeviceError
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import load_access
from devices.kube.errors import KubeError, NotFound
from devices.kube.resources import NODES, PODS, RESOURCE_QUOTAS, Resource
from devices.ledger import ADMITTED, QUOTA_COUNTS, Ledger
from devices.objects import node_of, pod_of, quota_of
from devices.quota import PREFIX, amounts
from devices.scopes import facts_of
from webhook.admission import Admission, Verdict
from webhook.admitted.record import Entry, Outstanding, Record, RecordError, decode
from webhook.admitted.store import record_name
from webhook.config import DEFAULT_NAMESPACE, AdmissionSettings
from webhook.quota_report import LimitJson, NamespaceJson, namespace_report
from webhook.quota_service import QuotaAsk, QuotaService
from webhook.wire import JsonObject

__all__ = ["app"]

T = TypeVar("T")

_FAILED, _BAD_INPUT = 1, 2
_BAR_CELLS = 24
_TIMEOUT_S = 30.0


class _ShowByDefault(TyperGroup):
    """A name that is no command is a namespace: `slotwise quota team-a` means `slotwise quota show team-a`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override] # the same at run time
        """Put `show` in front where no command is named."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ShowByDefault,
    help="Namespace quota on accelerators.\n\nslotwise quota [b][NAMESPACE][/] shows limits and what is used.",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Kubeconfig = Annotated[str | None, typer.Option(help="Default: $KUBECONFIG, ~/.kube/config, then in-cluster.")]
Counts = Annotated[str, typer.Option(help="As the services are run with: admitted or placed.")]
OwnNamespace = Annotated[str, typer.Option(help="Slotwise's own namespace, where admissions are recorded.")]
DeviceFile = Annotated[str, typer.Option(help="Accelerator families, YAML; empty: shipped values.")]


class _Cluster:
    """A cluster read once: its books and the records of admissions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entries: dict[str, dict[str, Entry]] = {}


def _refuse(text: str, status: int) -> NoReturn:
    typer.echo(f"slotwise quota: {text}", err=True)
    raise typer.Exit(status)


def _config(file: str) -> DeviceConfig:
    return load(file) if file else default_config()


async def _read(kubeconfig: str | None, namespace: str, counts: str, own_namespace: str, file: str) -> _Cluster:
    """Nodes, quotas and pods (of one namespace, or of all where it is empty) as they are now. Raises KubeError."""
    cluster = _Cluster(Ledger(_config(file), quota_counts=counts))
    settings = ClientSettings(user_agent="slotwise-quota", timeout_s=_TIMEOUT_S)
    async with KubeClient(await load_access(kubeconfig), settings) as client:
        for document in await _list(client, NODES, None):
            cluster.ledger.put_node(node_of(document))
        for document in await _list(client, RESOURCE_QUOTAS, namespace or None):
            cluster.ledger.put_quota(quota_of(document))
        for document in await _list(client, PODS, namespace or None):
            cluster.ledger.put_pod(pod_of(document), time.time())
        if counts == ADMITTED:
            for name in {quota.namespace for quota in cluster.ledger.quotas()}:
                cluster.entries[name] = await _recorded(client, cluster.ledger, own_namespace, name)
    return cluster


async def _list(client: KubeClient, resource: Resource, namespace: str | None) -> list[JsonObject]:
    found: list[JsonObject] = []
    async for page in client.list_pages(resource, namespace):
        found += json.loads(page.raw).get("items") or []
    return found


async def _recorded(client: KubeClient, ledger: Ledger, own_namespace: str, name: str) -> dict[str, Entry]:
    try:
        data = (await client.get_config_map(own_namespace, record_name(name))).get("data")
    except NotFound:
        return {}
    record = decode(data if isinstance(data, dict) else {})
    return {
        uid: entry for uid, entry in record.entries.items() if ledger.shown(uid) is None and ledger.charged(uid) is None
    }


async def _ask_webhook(url: str, namespace: str) -> list[NamespaceJson]:
    path = f"{url.rstrip('/')}/quotas" + (f"/{namespace}" if namespace else "")
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(path) as answer:
        if answer.status != 200:
            _refuse(f"{path} answered {answer.status}: {(await answer.text()).strip()}", _FAILED)
        document = await answer.json()
    reports: list[NamespaceJson] = [document] if namespace else document["namespaces"]
    return reports


def _check_counts(counts: str) -> None:
    if counts not in QUOTA_COUNTS:
        _refuse(f"--counts: {counts!r} is not accepted: expected {' or '.join(QUOTA_COUNTS)}", _BAD_INPUT)


@app.command("show")
def show(
    namespace: Annotated[str, typer.Argument(help="Only this one; none: all that use or limit anything.")] = "",
    url: Annotated[str, typer.Option(help="Ask a webhook's plain port, such as http://127.0.0.1:8080.")] = "",
    kubeconfig: Kubeconfig = None,
    counts: Counts = ADMITTED,
    own_namespace: OwnNamespace = DEFAULT_NAMESPACE,
    device_config_file: DeviceFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Limits, what is used of them, and what is admitted and not yet seen.

    Read from the API server, or with --url from a webhook. Exit status 1 where it cannot be read.

    Example: slotwise quota team-a --url http://127.0.0.1:8080
    """
    _check_counts(counts)

    async def read() -> list[NamespaceJson]:
        if url:
            return await _ask_webhook(url, namespace)
        cluster = await _read(kubeconfig, namespace, counts, own_namespace, device_config_file)
        names = [namespace] if namespace else cluster.ledger.namespaces()
        return [namespace_report(cluster.ledger, name, cluster.entries.get(name, {})) for name in names]

    reports = _run(read)
    if as_json:
        typer.echo(json.dumps(reports[0] if namespace else {"namespaces": reports}))
        return
    _print(reports)


def _run(read: Callable[[], Coroutine[None, None, T]]) -> T:
    try:
        return asyncio.run(read())
    except (DeviceError, RecordError, msgspec.ValidationError) as error:
        _refuse(str(error), _BAD_INPUT)
    except (KubeError, aiohttp.ClientError, TimeoutError) as error:
        _refuse(str(error) or "timed out", _FAILED)


def _bar(row: LimitJson) -> Text:
    """Used in one colour, recorded in another, free as dots."""
    bar = Text()
    limit = row["limit"]
    used = min(_BAR_CELLS, round(_BAR_CELLS * row["used"] / limit)) if limit > 0 else _BAR_CELLS
    more = min(_BAR_CELLS - used, round(_BAR_CELLS * row["recorded"] / limit)) if limit > 0 else 0
    bar.append("█" * used, style="red" if row["used"] + row["recorded"] >= limit else "green")
    bar.append("▒" * more, style="yellow")
    bar.append("·" * (_BAR_CELLS - used - more), style="dim")
    return bar


def _print(reports: Sequence[NamespaceJson]) -> None:
    if not any(report["limits"] or report["pods"] for report in reports):
        typer.echo("no quota limits accelerators, and no pod uses any")
        return
    table = Table("namespace", "key", "quota", "used", "recorded", "limit", "")
    for column in (3, 4, 5):
        table.columns[column].justify = "right"
    for report in reports:
        for row in report["limits"]:
            quota = row["quota"] + (f" ({'; '.join(row['scope'])})" if row["scope"] else "")
            numbers = (str(row["used"]), str(row["recorded"]), str(row["limit"]))
            table.add_row(report["namespace"], row["key"], quota, *numbers, _bar(row))
        if not report["limits"]:
            for vendor, charge in report["used"].items():
                shown = f"{charge['memory_mib']} MiB, {charge['cores']} %, {charge['cards']} cards"
                table.add_row(report["namespace"], vendor, "(no limit)", shown, "", "", Text(""))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for report in reports:
        for problem in report["problems"]:
            console.print(f"warning: {problem}", markup=False, highlight=False)


@app.command("check")
def check(
    file: Annotated[Path, typer.Option("-f", "--file", help="A Pod, YAML or JSON; - reads standard input.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Default: the pod's own, else default.")] = "",
    kubeconfig: Kubeconfig = None,
    counts: Counts = ADMITTED,
    own_namespace: OwnNamespace = DEFAULT_NAMESPACE,
    device_config_file: DeviceFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Would this pod be let in, what would it cost, and how many like it fit.

    Exit status 0 when it would, 1 when not or the cluster cannot be read, 2 for a file that is no pod.

    Example: slotwise quota check -f pod.yaml -n team-a
    """
    _check_counts(counts)
    document = _pod_file(file)
    metadata = document.get("metadata")
    own = metadata.get("namespace") if isinstance(metadata, dict) else None
    space = namespace or (own if isinstance(own, str) else "") or "default"

    async def read() -> _Cluster:
        return await _read(kubeconfig, space, counts, own_namespace, device_config_file)

    cluster = _run(read)
    answer = judge(cluster.ledger, Record(entries=cluster.entries.get(space, {})), document, space)
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _print_check(answer)
    if not answer["admitted"]:
        raise typer.Exit(_FAILED)


def _pod_file(file: Path) -> JsonObject:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: no UTF-8, a date that is none
        _refuse(f"{file}: {' '.join(str(error).split())}", _BAD_INPUT)
    if not isinstance(document, dict) or document.get("kind", "Pod") != "Pod":
        _refuse(f"{file}: not a Pod: expected one object of kind Pod", _BAD_INPUT)
    return document


def judge(ledger: Ledger, record: Record, pod: JsonObject, namespace: str) -> JsonObject:
    """What `/webhook` and `/validate` would say of a pod, its cost by key, and how many like it fit (null: no limit)."""
    admission = Admission(AdmissionSettings(quota_counts=ledger.quota_counts), ledger.config, ledger)
    mutated = admission.mutate(pod, namespace)
    verdict: Verdict = admission.validate(mutated.pod, namespace) if mutated.allowed else mutated
    answer: JsonObject = {
        "namespace": namespace,
        "admitted": verdict.allowed,
        "message": verdict.message,
        "warnings": list(dict.fromkeys((*mutated.warnings, *verdict.warnings))),
        "charges": {},
        "fits": None,
    }
    if verdict.ask is None:
        return answer
    service = QuotaService(ledger)
    standings = Outstanding(record, _Seen(ledger)).on_top_of(ledger.standings(namespace, facts_of(pod_of(mutated.pod))))
    judgement = service.judge_against(verdict.ask, standings)
    if judgement.excesses:
        answer["admitted"] = False
        answer["message"] = "exceeding resource quota: " + "; ".join(map(str, judgement.excesses))
    answer["charges"] = _cost(ledger, verdict.ask)
    room = []
    for vendor in ledger.config.vendors:
        charge = verdict.ask.charges.get(vendor.key)
        for standing in standings if charge is not None else ():
            assert charge is not None
            used = standing.used.get(vendor.key)
            held = {name: amount for name, amount, _ in amounts(vendor, used)} if used is not None else {}
            for name, more, factor in amounts(vendor, charge):
                if more > 0 and name in standing.limits:
                    room.append(max(0, standing.limits[name].value * factor - held.get(name, 0)) // more)
    answer["fits"] = min(room, default=None)
    return answer


class _Seen:
    """(webhook.admitted.record.View) A cluster read once has everything listed."""

    revision = listed = sys.maxsize

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def shown(self, uid: str) -> int | None:
        return self._ledger.shown(uid)

    def counts(self, uid: str) -> bool:
        return self._ledger.charged(uid) is not None

    def is_over(self, uid: str) -> bool:
        return False


def _cost(ledger: Ledger, ask: QuotaAsk) -> dict[str, int]:
    return {
        PREFIX + name: amount
        for vendor in ledger.config.vendors
        if vendor.key in ask.charges
        for name, amount, _ in amounts(vendor, ask.charges[vendor.key])
        if name
    }


def _print_check(answer: JsonObject) -> None:
    fits = answer["fits"]
    if answer["admitted"]:
        typer.echo(f"would be admitted in {answer['namespace']}")
    else:
        typer.echo(f"would be refused in {answer['namespace']}: {answer['message']}")
    charges = answer["charges"]
    for key, amount in charges.items() if isinstance(charges, dict) else ():
        typer.echo(f"  {key}  {amount}")
    typer.echo("no limit covers it" if fits is None else f"{fits} like it fit")
    warnings = answer["warnings"]
    for text in warnings if isinstance(warnings, list) else ():
        typer.echo(f"warning: {text}", err=True)
