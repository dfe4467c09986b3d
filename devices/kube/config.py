"""Where the API server is and how we prove who we are.

kubeconfig files, exec plugins and service accounts are read by `kubernetes.aio.config`; what comes out is a
`ClusterAccess`: address, TLS, headers. Tokens that change under us (projected service account tokens, exec plugins,
token files) are read anew in time, and at once after the server has refused one.
"""

import asyncio
import importlib
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, cast

import yaml

from devices.kube.errors import ConfigError

__all__ = ["ClusterAccess", "Credentials", "explicit_access", "load_access"]

SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kubelet replaces a projected token at 80 % of its life, at least 10 minutes long; the same rhythm serves token
# files.
_FILE_TOKEN_LIFE_S: Final = 60.0
# A token is replaced this long before it ends, so that no request leaves with one about to end.
_EXPIRY_MARGIN_S: Final = 60.0
# A server that refuses everything must not make us run an exec plugin for every request.
_SHORTEST_REFRESH_S: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """One set of credentials.

    `authorization` is the whole header value, None where a client certificate or nothing at all is used;
    `renew_at_unix_s` says when to ask again, None for never.
    """

    authorization: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    renew_at_unix_s: float | None = None


class ClusterAccess:
    """How to reach one API server.

    `host` is a base URL without a trailing slash (it may hold a path), `namespace` the default one, `source` says in
    words where all this was found.
    """

    def __init__(
        self,
        host: str,
        *,
        source: str,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        proxy: str | None = None,
        namespace: str = "default",
        credentials: Credentials | None = None,
        reload: Callable[[], Awaitable[Credentials]] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if not host.startswith(("http://", "https://")):
            raise ConfigError(f"{source}: server {host!r} is no http:// or https:// URL")
        self.host = host.rstrip("/")
        self.source = source
        self.ssl_context = ssl_context
        self.server_hostname = server_hostname
        self.proxy = proxy
        self.namespace = namespace
        self._credentials = credentials or Credentials()
        self._reload = reload
        self._wall_clock = wall_clock
        self._loaded_at = wall_clock()
        self._reloading = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        """The headers that identify us, with a token that is good for another minute where that is in our hands."""
        renew_at = self._credentials.renew_at_unix_s
        if renew_at is not None and self._wall_clock() >= renew_at:
            await self._renew(self._credentials)
        authorization = self._credentials.authorization
        return {} if authorization is None else {"Authorization": authorization}

    async def refused(self, headers: Mapping[str, str]) -> bool:
        """The server answered 401 to `headers`: True if there are other ones now, so that asking again makes sense."""
        refused = headers.get("Authorization")
        if refused == self._credentials.authorization:
            await self._renew(self._credentials)
        return refused != self._credentials.authorization

    async def _renew(self, held: Credentials) -> None:
        async with self._reloading:
            if self._reload is None or self._credentials is not held:
                return  # nothing to reload, or another request has just done it
            if self._wall_clock() - self._loaded_at < _SHORTEST_REFRESH_S:
                return
            self._loaded_at = self._wall_clock()
            try:
                fresh = await self._reload()
            except ConfigError as error:
                # The token held may still be good; if not, the API server says so and the request fails with 401.
                _log.warning("credentials could not be renewed, the old ones stay in use: %s", error)
                return
            if self.ssl_context is not None and fresh.cert_file is not None and fresh.cert_file != held.cert_file:
                _load_client_certificate(self.ssl_context, fresh, self.source)
            self._credentials = fresh


def explicit_access(
    host: str,
    *,
    token: str | None = None,
    ca_file: str | None = None,
    ca_pem: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    server_hostname: str | None = None,
    namespace: str = "default",
) -> ClusterAccess:
    """Access by arguments alone, for the lab and for tests; `ca_file` or `ca_pem` names the only CA trusted.

    Raises ConfigError for an address, CA or certificate that cannot be used.
    """
    source = f"explicit address {host}"
    credentials = Credentials(f"Bearer {token}" if token else None, cert_file, key_file)
    context = None
    if host.startswith("https://"):
        context = _tls(source, ca_file=ca_file, ca_pem=ca_pem)
        _load_client_certificate(context, credentials, source)
    return ClusterAccess(
        host,
        source=source,
        ssl_context=context,
        server_hostname=server_hostname,
        namespace=namespace,
        credentials=credentials,
    )


async def load_access(
    kubeconfig: str | None = None,
    *,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
    wall_clock: Callable[[], float] = time.time,
) -> ClusterAccess:
    """Find the cluster: `kubeconfig`, else `KUBECONFIG`, else `$HOME/.kube/config`, else the pod's service account.

    (HAMi v2.10 wire contract: environment.) A file that is named but missing is an error, never a reason to look
    further; `KUBECONFIG` may list several files. Raises ConfigError.
    """
    named = kubeconfig or environ.get("KUBECONFIG")
    if named:
        if not _existing(named):
            origin = "--kubeconfig" if kubeconfig else "KUBECONFIG"
            raise ConfigError(f"{origin}: no such file: {named}")
        return await _from_kubeconfig(named, context, wall_clock)
    home = environ.get("HOME")
    if home and (default := Path(home) / ".kube" / "config").is_file():
        return await _from_kubeconfig(str(default), context, wall_clock)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environ, service_account_dir, wall_clock)
    raise ConfigError(
        "no cluster found: no --kubeconfig, KUBECONFIG is not set, there is no $HOME/.kube/config, and this is no pod "
        "(KUBERNETES_SERVICE_HOST is not set)"
    )


class _Configuration(Protocol):
    """The attributes of the library's client configuration that its loaders fill."""

    host: str
    api_key: dict[str, str]
    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool
    tls_server_name: str | None
    proxy: str | None


class _Loader(Protocol):
    """A kubeconfig loader of the library; it also has `exec_plugin_expiry` where a plugin named one."""

    current_context: Mapping[str, object]


def _library(name: str) -> ModuleType:
    # Imported when needed: half a second that the lab, replay and --help need not pay. The library is not typed.
    return importlib.import_module(f"kubernetes.aio.{name}")


def _new_configuration() -> _Configuration:
    factory: Callable[[], _Configuration] = _library("client.configuration").Configuration
    return factory()


async def _from_kubeconfig(
    paths: str, context: str | None, wall_clock: Callable[[], float] = time.time
) -> ClusterAccess:
    source = f"kubeconfig {paths}"
    configuration, credentials, namespace = await _read_kubeconfig(paths, context, source, wall_clock)

    async def reload() -> Credentials:
        return (await _read_kubeconfig(paths, context, source, wall_clock))[1]

    tls = None
    if configuration.host.startswith("https://"):
        tls = _tls(source, ca_file=configuration.ssl_ca_cert, verify=configuration.verify_ssl)
        _load_client_certificate(tls, credentials, source)
    return ClusterAccess(
        configuration.host,
        source=source,
        ssl_context=tls,
        server_hostname=configuration.tls_server_name,
        proxy=configuration.proxy,
        namespace=namespace,
        credentials=credentials,
        reload=reload,
        wall_clock=wall_clock,
    )


async def _read_kubeconfig(
    paths: str, context: str | None, source: str, wall_clock: Callable[[], float]
) -> tuple[_Configuration, Credentials, str]:
    configuration = _new_configuration()
    configuration.host = ""
    try:
        loader: _Loader = await _library("config").load_kube_config(
            config_file=paths, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # the loader lets KeyError, TypeError, YAML and OS errors through, besides its own
        raise ConfigError(f"{source}: {error}") from error
    if not configuration.host:
        raise ConfigError(f"{source}: the current context's cluster has no server")
    user = _user(paths, loader.current_context)
    authorization = configuration.api_key.get("BearerToken")
    if "exec" in user and authorization is None and configuration.cert_file is None:
        # The library logs why and goes on without credentials.
        raise ConfigError(f"{source}: exec plugin {_command(user)!r} gave no credentials (see the log line before)")
    expiry = getattr(loader, "exec_plugin_expiry", None)
    renew_at: float | None = None
    if expiry is not None:
        renew_at = max(expiry.timestamp() - _EXPIRY_MARGIN_S, wall_clock() + _SHORTEST_REFRESH_S)
    elif "tokenFile" in user:
        renew_at = wall_clock() + _FILE_TOKEN_LIFE_S
    credentials = Credentials(
        None if authorization is None else authorization.strip(),
        configuration.cert_file,
        configuration.key_file,
        renew_at,
    )
    details = loader.current_context.get("context")
    namespace = details.get("namespace") if isinstance(details, Mapping) else None
    return configuration, credentials, str(namespace or "default")


def _user(paths: str, context: Mapping[str, object]) -> Mapping[str, object]:
    """The user entry of the context: the library does not say which kind of credentials it found."""
    details = context.get("context")
    wanted = details.get("user") if isinstance(details, Mapping) else None
    for path in _existing(paths):
        document = yaml.safe_load(path.read_text())
        for entry in document.get("users") or ():
            if entry.get("name") == wanted:
                return cast(Mapping[str, object], entry.get("user") or {})
    return {}


def _existing(paths: str) -> list[Path]:
    candidates = [Path(part).expanduser() for part in paths.split(os.pathsep) if part]
    return [path for path in candidates if path.is_file()]


def _command(user: Mapping[str, object]) -> object:
    plugin = user.get("exec")
    return plugin.get("command") if isinstance(plugin, Mapping) else plugin


def _in_cluster(
    environ: Mapping[str, str], directory: Path, wall_clock: Callable[[], float] = time.time
) -> ClusterAccess:
    source = f"service account in {directory}"

    def read() -> tuple[_Configuration, Credentials]:
        configuration = _new_configuration()
        module = _library("config.incluster_config")
        try:
            module.InClusterConfigLoader(
                token_filename=str(directory / "token"),
                cert_filename=str(directory / "ca.crt"),
                try_refresh_token=False,
                environ=environ,
            ).load_and_set(configuration)
        except Exception as error:  # its own error type, and OSError where a file vanishes while it is read
            raise ConfigError(f"{source}: {error}") from error
        token = configuration.api_key["BearerToken"].split(None, 1)[1].strip()
        return configuration, Credentials(f"Bearer {token}", renew_at_unix_s=wall_clock() + _FILE_TOKEN_LIFE_S)

    async def reload() -> Credentials:
        return read()[1]

    configuration, credentials = read()
    namespace_file = directory / "namespace"
    return ClusterAccess(
        configuration.host,
        source=source,
        ssl_context=_tls(source, ca_file=configuration.ssl_ca_cert),
        namespace=namespace_file.read_text().strip() if namespace_file.is_file() else "default",
        credentials=credentials,
        reload=reload,
        wall_clock=wall_clock,
    )


def _tls(source: str, *, ca_file: str | None = None, ca_pem: str | None = None, verify: bool = True) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file, cadata=ca_pem)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"{source}: certificate authority {ca_file or 'given as text'}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Cluster CAs made by older tools lack extensions that Python 3.13 insists on and no other Kubernetes client does.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        _log.warning("%s: insecure-skip-tls-verify is set: the API server's certificate is not checked", source)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_client_certificate(context: ssl.SSLContext, credentials: Credentials, source: str) -> None:
    if credentials.cert_file is None:
        return
    try:
        context.load_cert_chain(credentials.cert_file, credentials.key_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: client certificate {credentials.cert_file}: {error}") from error
