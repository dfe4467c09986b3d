"""Writing certificate files so that a reader finds the old content or the new, never half of one."""

import os
import tempfile
from pathlib import Path

from certs.pki import Pair

__all__ = ["write_atomically", "write_pair"]


def write_pair(pair: Pair, certificate: Path, key: Path) -> None:
    """Write both files, the key (mode 0600) first; raises OSError.

    Between the two renames a reader sees the new key with the old certificate, which do not belong together: readers
    that check (as `serving.tls` does) keep what they have until the second one.
    """
    write_atomically(key, pair.key_pem(), mode=0o600)
    write_atomically(certificate, pair.certificate_pem(), mode=0o644)


def write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """Put `content` at `path` in one step that also survives a power cut; raises OSError and leaves nothing behind."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # before the content is in it
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    # The rename itself is durable once the folder is.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
