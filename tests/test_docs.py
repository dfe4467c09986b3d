"""The documentation says what is: links, commands, flags, metrics, reasons and examples are held against the code."""

import argparse
import asyncio
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import pytest
import yaml
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import lab.scenario as forms
import scheduler.config
import webhook.config
from certs.files import write_pair
from certs.pki import create_ca, issue_serving
from cli.__main__ import app
from cli.hami_flags import new_parser
from devices.config import default_config, read
from devices.reasons import NODE_INSUFFICIENT_DEVICE, NODE_UNREGISTERED, Reason
from lab.apiserver import ApiServer
from lab.records import ScenarioDone
from lab.replay import scenario as replay_format
from lab.runner import run_scenario
from lab.scenario import read_scenario, scenario_groups, shipped_scenarios
from tests.webhook.test_process import kubeconfig
from webhook.validators import RefusalReason

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}
PATIENCE_S = 30

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    return [body for language, body in FENCE.findall(text_of(page)) if language == kind]


def section(page: str, title: str) -> str:
    """The text below one heading of the second level."""
    _, _, rest = text_of(page).partition(f"\n## {title}\n")
    assert rest, f"{page} has no section {title!r}"
    return rest.partition("\n## ")[0]


def coded(text: str) -> set[str]:
    """Everything set in back-ticks outside of fenced blocks."""
    return set(CODE.findall(FENCE.sub("", text)))


def first_cells(text: str) -> set[str]:
    """What is in back-ticks in the first column of the tables."""
    return {
        name for line in text.splitlines() if line.startswith("| ") for name in CODE.findall(line.split(" | ", 1)[0])
    }


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- links ---


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        name, _, anchor = target.partition("#")
        if ":" in name:
            continue
        path = (PAGES[page].parent / name).resolve() if name else PAGES[page]
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken


def test_the_index_names_every_page() -> None:
    named = {target.partition("#")[0] for target in LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))}
    assert named >= {path.name for path in DOCS.glob("*.md")} - {"README.md"}


# --- commands ---


def slotwise_arguments(line: str) -> list[str] | None:
    """What follows `slotwise` in a shell line, without its comment; None where it is not called."""
    for part in re.split(r"&&|\|\|?|;", line):
        words = shlex.split(part, comments=True)
        if words and Path(words[0]).name == "slotwise":
            return [word for word in words[1:] if word != "&"]
    return None


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    for page in PAGES:
        lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
        lines += [code for code in sorted(coded(text_of(page))) if code.startswith("slotwise ") and "…" not in code]
        for line in lines:
            if "slotwise" in line and (arguments := slotwise_arguments(line)) is not None:
                yield f"{page}: {' '.join(arguments)}", tuple(arguments)


COMMANDS = dict(commands())


def is_known(arguments: tuple[str, ...]) -> bool:
    """Whether the command exists and knows these options: an unknown one is refused before help is shown."""
    return CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_commands_exist_with_their_options(arguments: tuple[str, ...]) -> None:
    assert is_known(arguments)


@pytest.mark.parametrize("line", ["slotwise lab burst --gpus 8", "slotwise bench bind", "slotwise replays tests"])
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    arguments = slotwise_arguments(line)
    assert arguments is not None
    assert not is_known(tuple(arguments))


def test_scenarios_named_in_commands_are_shipped() -> None:
    known = {*shipped_scenarios(), *scenario_groups(), "run", "list", "burst"}
    named = {
        word
        for arguments in COMMANDS.values()
        if arguments[:1] == ("lab",) and arguments[1:2] != ("burst",)
        for word in arguments[1:]
        if not word.startswith("-") and "/" not in word and not word.endswith(".yaml")
    }
    assert named
    assert named <= known


def test_services_in_commands_know_their_flags() -> None:
    parse: Mapping[str, Callable[[Sequence[str]], object]] = {
        "webhook": webhook.config.parse,
        "scheduler": scheduler.config.parse,
    }
    found = 0
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                words = shlex.split(line, comments=True) if " -m " in line else []
                if words[1:2] == ["-m"] and words[2] in parse:
                    parse[words[2]]([word for word in words[3:] if word != "&"])
                    found += 1
    assert found >= 3


# --- flags ---

SERVICES = {"webhook": webhook.config._parser(), "scheduler": scheduler.config._parser()}
RUN = "docs/run-the-services.md"


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.mark.parametrize("service", SERVICES)
def test_every_flag_is_documented(service: str) -> None:
    both = first_cells(section(RUN, "Flags of both"))
    own = section(RUN, f"Flags of `python -m {service}`")
    refused = {code for code in coded(own) if code.startswith("--")}
    assert flags_of(SERVICES[service]) <= both | first_cells(own) | refused


@pytest.mark.parametrize("service", SERVICES)
def test_every_documented_flag_exists(service: str) -> None:
    documented = first_cells(section(RUN, f"Flags of `python -m {service}`")) | first_cells(
        section(RUN, "Flags of both")
    )
    assert documented <= flags_of(SERVICES[service])


def _options(command: object) -> Iterator[str]:
    """The options of a command and of all below it."""
    assert isinstance(command, TyperCommand | TyperGroup)
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    yield "--help"
    for below in command.commands.values() if isinstance(command, TyperGroup) else ():
        yield from _options(below)


def test_flags_named_anywhere_exist() -> None:
    known = set.union(*(flags_of(parser) for parser in (*SERVICES.values(), new_parser())))
    known |= set(_options(get_command(app)))
    # Of other programs: kubectl. And a name that the drop-in takes by its pattern.
    known |= {"--validate", "--server", "--dcu-name"}
    named = {
        match
        for page in PAGES
        if page != "docs/decisions.md"  # tells of what was, too
        for code in coded(text_of(page))
        for match in re.findall(r"(?<!\S)--[a-z][a-z-]+", code)
    }
    assert named <= known


# --- metrics ---


@dataclass(frozen=True)
class Metrics:
    """Names by the service that exports them."""

    webhook: frozenset[str]
    scheduler: frozenset[str]


def documented_metrics() -> Metrics:
    found: dict[str, set[str]] = {"webhook": set(), "scheduler": set()}
    text = section(RUN, "Metrics")
    table, _, rest = text.partition("With `--legacy-metrics`")
    legacy, _, own = rest.partition("Our own")
    found["scheduler"] |= {name for name in first_cells(table) if name.startswith("hami_")}
    found["scheduler"] |= {code for code in coded(legacy) if code.isalnum()}
    for line in own.partition("| alarm on")[0].splitlines():
        cells = line.strip("|").split("|")
        names = {code for code in CODE.findall(cells[0]) if code.startswith("slotwise_")} if len(cells) > 1 else set()
        for service, held in found.items():
            if names and (service in cells[1] or "both" in cells[1]):
                held.update(names)
    return Metrics(frozenset(found["webhook"]), frozenset(found["scheduler"]))


def exported_names(page: str) -> frozenset[str]:
    names = re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE)
    return frozenset(name for name in names if not name.endswith("_created"))


@asynccontextmanager
async def running(service: str, *arguments: str) -> AsyncIterator[str]:
    """A service as its own process; gives the address of its plain port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", service, "--http-bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stderr is not None
        seen = ""
        while (found := re.search(r"listening on \S+, (127\.0\.0\.1:\d+)", seen)) is None:
            line = await process.stderr.readline()
            assert line, seen
            seen += line.decode()
        yield f"http://{found[1]}"
        process.send_signal(signal.SIGTERM)
        await process.stderr.read()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


ELECTING = (
    "--leader-elect",
    "--leader-elect-resource-name=l",
    "--leader-elect-resource-namespace=n",
)


async def test_metrics_are_those_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "p")
    monkeypatch.setenv("POD_NAMESPACE", "n")
    now = datetime.now(UTC)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    write_pair(issue_serving(create_ca("ca", now=now, days=1), ["127.0.0.1"], now=now, days=1), certificate, key)
    api = ApiServer()
    await api.start()
    given = (f"--kubeconfig={kubeconfig(tmp_path, api.url)}",)
    files = (f"--cert-file={certificate}", f"--key-file={key}")
    try:
        async with aiohttp.ClientSession() as session:
            pages: dict[str, frozenset[str]] = {}
            for service, more in (
                ("webhook", files),
                ("webhook", ("--cert-secret=tls", "--own-namespace=default")),
                ("scheduler", (*files, "--legacy-metrics")),
                ("scheduler", ELECTING),
            ):
                async with (
                    asyncio.timeout(PATIENCE_S),
                    running(service, *given, *more) as plain,
                    session.get(f"{plain}/metrics") as answer,
                ):
                    pages[service] = pages.get(service, frozenset()) | exported_names(await answer.text())
    finally:
        await api.stop()
    documented = documented_metrics()
    assert documented.webhook == pages["webhook"]
    assert documented.scheduler == pages["scheduler"]


def test_metrics_named_anywhere_are_documented() -> None:
    documented = documented_metrics()
    known = documented.webhook | documented.scheduler
    named = {
        name
        for page in PAGES
        for name, more in re.findall(r"(?<![\w/.])((?:slotwise|hami)_[a-z_]+)(…?)", text_of(page))
        if not more
    }
    assert {name for name in named if not {name, re.sub(r"_(count|sum|bucket)$", "", name)} & known} == set()


# --- reasons and texts ---


def test_every_reason_is_explained() -> None:
    explained = coded(section("docs/why-does-my-pod-wait.md", "The reasons"))
    assert {reason.value for reason in Reason} | {NODE_INSUFFICIENT_DEVICE, NODE_UNREGISTERED} <= explained


def test_every_reason_in_the_table_exists() -> None:
    table = section("docs/why-does-my-pod-wait.md", "The reasons").partition("Without counts:")[0]
    assert first_cells(table) <= {reason.value for reason in Reason}


def test_every_way_to_be_refused_is_shown() -> None:
    shown = section("docs/ask-for-a-share.md", "What is refused")
    texts: Mapping[RefusalReason, str] = {
        RefusalReason.NO_CONTAINERS: "pod has no containers",
        RefusalReason.MALFORMED: "must be an integer between",
        RefusalReason.IGNORED: "label hami.io/webhook: ignore",
        RefusalReason.FORGED: "is written by the system alone",
        RefusalReason.SCHEDULER: "but its scheduler is",
        RefusalReason.PRIVILEGED: "is privileged",
        RefusalReason.NODE_NAME: "pod has node assigned",
        RefusalReason.EPHEMERAL: "ephemeral container debug is privileged, in a pod with",
        RefusalReason.RESIZE: "of a pod that is there already cannot be changed",
        RefusalReason.BINDING: "may not bind it: leave it to",
        RefusalReason.POD_UNKNOWN: "cannot be read: ",
        RefusalReason.QUOTA: "exceeding resource quota: ",
        RefusalReason.QUOTA_UNKNOWN: "cannot be checked: ",
    }
    # What no user's pod can cause: an object that is none, and faults of ours.
    assert set(texts) == set(RefusalReason) - {RefusalReason.NOT_A_POD, RefusalReason.FAULT}
    assert [text for text in texts.values() if text not in shown] == []


# --- examples ---


def scenario_example() -> str:
    _, _, rest = text_of("docs/lab.md").partition("<!-- scenario -->\n```yaml\n")
    return rest.partition("\n```")[0]


async def test_the_example_scenario_passes() -> None:
    records = [record async for record in run_scenario(read_scenario(scenario_example(), "docs/lab.md"))]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    assert (done.problems, done.placed, done.denied) == ((), 3, 1)


FORMS = {
    "the file": forms._ScenarioForm,
    "node": forms.NodeForm,
    "card": forms.CardForm,
    "container": forms.ContainerForm,
    "pod": forms.PodForm,
    "expectation": forms.Expect,
    "step": forms.Step,
    "burst": forms.BurstStep,
    "quota": forms.QuotaForm,
    "quota used": forms.QuotaUsed,
    "event": forms.EventForm,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_key_of_a_scenario_is_documented(form: type[msgspec.Struct]) -> None:
    reference = section("docs/lab.md", "Write your own scenario")
    assert {field.name for field in msgspec.structs.fields(form)} <= coded(reference)


def test_every_key_of_a_recorded_scenario_is_documented() -> None:
    reference = coded(section("docs/replay.md", "The format"))
    kinds = {*replay_format._KINDS, *replay_format._TOP, *replay_format.FLAGS}
    assert kinds <= reference


@pytest.mark.parametrize("page", PAGES)
def test_yaml_examples_can_be_read(page: str) -> None:
    for block in blocks(page, "yaml"):
        assert list(yaml.safe_load_all(block)), block


def test_the_device_configuration_shown_is_that_shipped() -> None:
    (example,) = [block for block in blocks(RUN, "yaml") if block.startswith("nvidia:")]
    config = read(example)
    assert config.warnings == ()
    assert config.resources == default_config().resources
    family = default_config().vendor("NVIDIA")
    mine = config.vendor("NVIDIA")
    assert family is not None
    assert mine is not None
    assert (mine.memory_factor, mine.resources) == (family.memory_factor, family.resources)


def test_kube_scheduler_leaves_all_managed_resources_to_us() -> None:
    (example,) = [block for block in blocks(RUN, "yaml") if "KubeSchedulerConfiguration" in block]
    managed = yaml.safe_load(example)["extenders"][0]["managedResources"]
    assert {entry["name"] for entry in managed if entry["ignoredByScheduler"]} == default_config().resources


# --- the project stands alone ---

PACKAGES = ("certs", "cli", "devices", "lab", "scheduler", "serving", "webhook", "tests", "docs", "manifests", ".ci")
TEXTS = (".py", ".md", ".yaml", ".cfg", ".ini", ".toml", ".svg", ".sh")
# Put together here, so that this file does not name them itself.
PRIVATE = tuple(
    "/".join(parts) for parts in (("", "work", ""), ("..", "shared"), ("", "opt", "venv"), ("", "tmp", "w/"))
)


def test_no_text_names_a_machine_s_own_paths() -> None:
    files = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    files += [path for path in ROOT.glob("*") if path.suffix in TEXTS]
    assert len(files) > 100
    named = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in files
        for word in PRIVATE
        if word in path.read_text(encoding="utf-8")
    ]
    assert named == []
