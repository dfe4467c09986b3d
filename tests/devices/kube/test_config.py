"""Finding the cluster and credentials: kubeconfig files, exec plugins, service accounts, arguments."""

import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
import yaml

from devices.kube.config import ClusterAccess, explicit_access, load_access
from devices.kube.errors import ConfigError


def kubeconfig(
    path: Path,
    user: Mapping[str, object] | None,
    *,
    server: str = "http://127.0.0.1:1",
    cluster: Mapping[str, object] | None = None,
    **context: str,
) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"} | context}],
        "clusters": [{"name": "c", "cluster": {"server": server} | dict(cluster or {})}],
        "users": [] if user is None else [{"name": "u", "user": dict(user)}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


class Clock:
    def __init__(self) -> None:
        self.now_s = datetime.now(UTC).timestamp()

    def __call__(self) -> float:
        return self.now_s


async def authorization(access: ClusterAccess) -> str | None:
    return (await access.headers()).get("Authorization")


USERS: dict[str, tuple[Mapping[str, object] | None, str | None]] = {
    "token": ({"token": "abc"}, "Bearer abc"),
    "name and password": ({"username": "a", "password": "b"}, "Basic YTpi"),
    "nothing": (None, None),
}


@pytest.mark.parametrize(("user", "expected"), USERS.values(), ids=USERS)
async def test_user_of_a_kubeconfig(tmp_path: Path, user: Mapping[str, object] | None, expected: str | None) -> None:
    access = await load_access(kubeconfig(tmp_path / "config", user, namespace="team-a"), environ={})
    assert access.host == "http://127.0.0.1:1"
    assert access.namespace == "team-a"
    assert access.ssl_context is None
    assert await authorization(access) == expected


async def test_order_in_which_the_cluster_is_looked_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    kubeconfig(home / ".kube" / "config", {"token": "home"})
    named = kubeconfig(tmp_path / "named", {"token": "named"})
    variable = kubeconfig(tmp_path / "variable", {"token": "variable"})
    environ = {"KUBECONFIG": variable, "HOME": str(home), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert await authorization(await load_access(named, environ=environ)) == "Bearer named"
    assert await authorization(await load_access(environ=environ)) == "Bearer variable"
    del environ["KUBECONFIG"]
    assert await authorization(await load_access(environ=environ)) == "Bearer home"


async def test_several_files_in_the_variable(tmp_path: Path) -> None:
    present = kubeconfig(tmp_path / "present", {"token": "abc"})
    access = await load_access(environ={"KUBECONFIG": f"{tmp_path}/absent:{present}"})
    assert await authorization(access) == "Bearer abc"


async def test_named_file_that_is_missing_is_an_error_and_nothing_else_is_tried(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", {"token": "home"})
    with pytest.raises(ConfigError, match=r"--kubeconfig: no such file: .*absent"):
        await load_access(str(tmp_path / "absent"), environ={"HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"KUBECONFIG: no such file: .*absent"):
        await load_access(environ={"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "absent")})


async def test_no_cluster_at_all_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"KUBECONFIG.*\.kube/config.*KUBERNETES_SERVICE_HOST"):
        await load_access(environ={"HOME": str(tmp_path)})


BROKEN = {
    "no YAML": "a: [",
    "empty": "",
    "a list": "- a",
    "no contexts": "current-context: a",
    "no server": yaml.safe_dump(
        {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {}}],
        }
    ),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
async def test_broken_kubeconfig_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        await load_access(str(path), environ={})


async def test_server_that_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1.*https://"):
        await load_access(kubeconfig(tmp_path / "config", None, server="127.0.0.1:1"), environ={})


def plugin(path: Path, body: str) -> dict[str, object]:
    """An exec plugin in Python that keeps count of its runs beside itself."""
    path.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        f"count = pathlib.Path({str(path) + '.count'!r})\n"
        "run = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(run))\n"
        f"{body}\n"
        "version = 'client.authentication.k8s.io/v1'\n"
        "print(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}}


async def test_exec_plugin_is_run_again_before_its_token_ends(tmp_path: Path) -> None:
    clock = Clock()
    ends = datetime.fromtimestamp(clock.now_s + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    user = plugin(tmp_path / "login", f"status = {{'token': f't{{run}}', 'expirationTimestamp': {ends!r}}}")
    access = await load_access(kubeconfig(tmp_path / "config", user), environ={}, wall_clock=clock)
    clock.now_s += 3500
    assert await authorization(access) == "Bearer t1"
    clock.now_s += 60
    assert await authorization(access) == "Bearer t2"


async def test_exec_plugin_is_run_again_when_its_token_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    user = plugin(tmp_path / "login", "status = {'token': f't{run}'}")
    access = await load_access(kubeconfig(tmp_path / "config", user), environ={}, wall_clock=clock)
    first = await access.headers()
    assert not await access.refused(first)  # it has just been asked
    clock.now_s += 10
    assert await access.refused(first)
    assert await authorization(access) == "Bearer t2"
    assert await access.refused(first)  # another request with the old one: no third run
    assert await authorization(access) == "Bearer t2"


async def test_exec_plugin_that_fails_is_an_error_at_start(tmp_path: Path) -> None:
    user = plugin(tmp_path / "login", "sys.exit('not logged in')")
    with pytest.raises(ConfigError, match=r"exec plugin .*login"):
        await load_access(kubeconfig(tmp_path / "config", user), environ={})


async def test_exec_plugin_that_fails_later_leaves_the_old_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    user = plugin(tmp_path / "login", "status = {'token': 'only'} if run == 1 else sys.exit('not logged in')")
    access = await load_access(kubeconfig(tmp_path / "config", user), environ={}, wall_clock=clock)
    clock.now_s += 10
    assert not await access.refused(await access.headers())
    assert await authorization(access) == "Bearer only"
    assert "could not be renewed" in caplog.text


async def test_token_file_of_a_kubeconfig_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "token").write_text("one\n")
    path = kubeconfig(tmp_path / "config", {"tokenFile": str(tmp_path / "token")})
    access = await load_access(path, environ={}, wall_clock=clock)
    (tmp_path / "token").write_text("two\n")
    assert await authorization(access) == "Bearer one"
    clock.now_s += 61
    assert await authorization(access) == "Bearer two"


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "namespace").write_text("slotwise-system\n")
    return tmp_path


IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_service_account_and_its_rotating_token(service_account: Path) -> None:
    clock = Clock()
    access = await load_access(environ=IN_CLUSTER, service_account_dir=service_account, wall_clock=clock)
    assert access.host == "https://[fd00::1]:443"
    assert access.namespace == "slotwise-system"
    assert access.ssl_context is not None
    assert access.ssl_context.check_hostname
    assert await authorization(access) == "Bearer one"
    (service_account / "token").write_text("two\n")
    assert await authorization(access) == "Bearer one"
    clock.now_s += 61
    assert await authorization(access) == "Bearer two"


async def test_service_account_token_that_vanishes_leaves_the_old_one(service_account: Path) -> None:
    clock = Clock()
    access = await load_access(environ=IN_CLUSTER, service_account_dir=service_account, wall_clock=clock)
    (service_account / "token").unlink()
    clock.now_s += 61
    assert await authorization(access) == "Bearer one"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
async def test_incomplete_service_account_is_an_error(service_account: Path, missing: str) -> None:
    (service_account / missing).unlink()
    with pytest.raises(ConfigError, match="service account"):
        await load_access(environ=IN_CLUSTER, service_account_dir=service_account)


EXPLICIT = {
    "no URL": ({"host": "localhost"}, "no http"),
    "no such CA": ({"host": "https://h", "ca_file": "/nonexistent/ca"}, "certificate authority /nonexistent/ca"),
    "CA that is none": ({"host": "https://h", "ca_pem": "hello"}, "certificate authority given as text"),
    "no such certificate": ({"host": "https://h", "cert_file": "/nonexistent/c"}, "client certificate /nonexistent/c"),
}


@pytest.mark.parametrize(("arguments", "named"), EXPLICIT.values(), ids=EXPLICIT)
def test_arguments_that_cannot_be_used(arguments: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        explicit_access(**arguments)


async def test_kubeconfig_with_tls_and_client_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    certificate = authority.issue_cert("me")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "me.pem")
    path = kubeconfig(
        tmp_path / "config",
        {"client-certificate": str(tmp_path / "me.pem"), "client-key": str(tmp_path / "me.pem")},
        server="https://127.0.0.1:1/k8s/",
        cluster={
            "certificate-authority": str(tmp_path / "ca.crt"),
            "tls-server-name": "kubernetes",
            "proxy-url": "http://127.0.0.1:2",
        },
    )
    access = await load_access(path, environ={})
    assert access.host == "https://127.0.0.1:1/k8s"
    assert (access.server_hostname, access.proxy) == ("kubernetes", "http://127.0.0.1:2")
    assert access.ssl_context is not None
    assert len(access.ssl_context.get_ca_certs()) == 1
    assert await authorization(access) is None


async def test_unchecked_certificates_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unchecked = {"insecure-skip-tls-verify": True}
    path = kubeconfig(tmp_path / "config", {"token": "t"}, server="https://127.0.0.1:1", cluster=unchecked)
    access = await load_access(path, environ={})
    assert access.ssl_context is not None
    assert not access.ssl_context.check_hostname
    assert "not checked" in caplog.text
