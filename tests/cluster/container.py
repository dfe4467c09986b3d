"""Starts one container's process as a runtime would: own file tree, host name and user, then exec. A program of its own.

`python container.py SPEC` reads a JSON `ContainerSpec`. Only root may do this. The process dies with the thread that started it.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["Bind", "ContainerSpec", "may_run_containers"]

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUTS: Final = 0x04000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# Whatever programs need of the host to run at all; everything else of it cannot be seen.
_HOST: Final = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
_ETC: Final = (
    "alternatives",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "ssl",
)
_LIVE: Final = ("/dev", "/proc", "/sys")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Bind:
    """A file or folder of the host, and where the container sees it."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class ContainerSpec:
    """One process to start."""

    root: str
    """An empty folder; the tree is mounted on it where only the container sees it."""
    hostname: str
    command: Sequence[str]
    environment: Mapping[str, str]
    """All of it."""
    binds: Sequence[Bind] = ()
    read_only_root: bool = False
    user: int = 0
    group: int = 0
    groups: Sequence[int] = ()
    no_new_privileges: bool = False
    parent: int = 0
    """Process id of whoever starts it, and is not to be outlived."""

    def write(self, path: Path) -> None:
        """For `container.py` to read."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "ContainerSpec":
        """What `write` has written."""
        fields = json.loads(path.read_text())
        return cls(**{**fields, "binds": [Bind(**bind) for bind in fields["binds"]]})


def may_run_containers() -> bool:
    """Whether this process is allowed to do what `main` does; tried in a child."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _LIBC.unshare(_CLONE_NEWNS | _CLONE_NEWUTS) == 0 and os.geteuid() == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    fields = (source.encode(), target.encode(), kind.encode() if kind else None)
    _check(_LIBC.mount(*fields, ctypes.c_ulong(flags), None), f"mount {source} on {target}")


def _bind(source: str, target: Path, read_only: bool, flags: int = 0) -> None:
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, str(target), None, _MS_BIND | flags)
    if read_only:
        _mount(source, str(target), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def _lay_tree(spec: ContainerSpec) -> None:
    root = Path(spec.root)
    _check(_LIBC.unshare(_CLONE_NEWNS | _CLONE_NEWUTS), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", spec.root, "tmpfs", 0)
    root.chmod(0o755)
    for name in ("etc", "run", "tmp", "var"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "var/run").symlink_to("../run")
    for name in _HOST:
        here = Path(name)
        if here.is_symlink():
            (root / name[1:]).symlink_to(here.readlink())
        elif here.exists():
            _bind(name, root / name[1:], read_only=True)
    for name in _ETC:
        here = Path("/etc") / name
        if here.exists():
            _bind(str(here.resolve()), root / "etc" / name, read_only=True)
    for name in _LIVE:
        _bind(name, root / name[1:], read_only=False, flags=_MS_REC)
    # A mount in the place of another one's parent would hide it.
    for bind in sorted(spec.binds, key=lambda bind: bind.target):
        _bind(bind.source, root / bind.target.lstrip("/"), bind.read_only)
    if spec.read_only_root:
        _mount("none", spec.root, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def _become(spec: ContainerSpec) -> None:
    os.chroot(spec.root)
    os.chdir("/")
    name = spec.hostname.encode()
    _check(_LIBC.sethostname(name, len(name)), "sethostname")
    os.setgroups(list(spec.groups))
    os.setresgid(spec.group, spec.group, spec.group)
    os.setresuid(spec.user, spec.user, spec.user)
    if spec.no_new_privileges:
        _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # After the change of user, which forgets it.
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    if os.getppid() != spec.parent:
        sys.exit("whoever started this container is gone")


def main(path: str) -> NoReturn:
    """Become the container's process."""
    spec = ContainerSpec.read(Path(path))
    try:
        _lay_tree(spec)
        _become(spec)
        os.execvpe(spec.command[0], list(spec.command), dict(spec.environment))
    except OSError as error:
        sys.exit(f"container {spec.hostname}: {' '.join(spec.command)}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
