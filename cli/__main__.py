"""The `slotwise` command; one file a subcommand."""

from importlib.metadata import version
from typing import Annotated

import typer

from cli import bench, certs, lab, quota
from cli.doctor.command import doctor
from cli.manifests import manifests
from cli.rbac_check import rbac_check
from cli.replay import replay
from cli.vendors import vendors

__all__ = ["app"]

app = typer.Typer(
    name="slotwise",
    help="Slotwise places shares of accelerators (GPU, NPU, DCU, MLU …) on Kubernetes, in HAMi's language.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lab.app, name="lab")
app.add_typer(certs.app, name="certs")
app.add_typer(bench.app, name="bench")
app.add_typer(quota.app, name="quota")
app.command("manifests")(manifests)
app.command("replay")(replay)
app.command("vendors")(vendors)
app.command("doctor")(doctor)
app.command("rbac-check")(rbac_check)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"slotwise {version('slotwise')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version and leave.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    app()
