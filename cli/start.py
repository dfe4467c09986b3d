"""The console command `slotwise`: loading everything takes a moment, and Ctrl-C is answered quietly from the first one on."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command."""
    try:
        from cli.__main__ import app  # noqa: PLC0415 - inside the try, since this is what takes the moment

        app()
    except KeyboardInterrupt:
        sys.exit(130)
