"""`headwater tls`: a CA of one's own with its certificates, for first steps and tests; and the content of a
certificate.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from headwater.cli.forms import answer, report
from headwater.cli.options import examples, paragraphs
from headwater.errors import OptionError
from headwater.node.config import local_folder

PART = ("operate", 60)
HELP = """A certificate authority of your own, for first steps and tests: `ca` makes it, `node` and `user` have it sign.

A node is given the files by --tls-certificate, --tls-key and --tls-ca, a client the CA's ca.pem by trust_store=. By
ca.key certificates are made that all of them believe: keep it elsewhere. In production bring those of your own CA."""
EXAMPLES = examples(
    "headwater tls ca --dir ./tls",
    "headwater tls node n1 --host n1.example --host 10.0.0.1 --dir ./tls",
    "headwater tls node n1 --renew --dir ./tls",
    "headwater tls user ann --dir ./tls",
    "headwater tls show ./tls/n1.pem",
)
EXITS_OF = {
    "ca": {2: "there is a CA in the folder"},
    "node": {2: "there is no CA, or one of that name, and there is no --renew"},
    "user": {2: "there is no CA, or one of that name, and there is no --renew"},
}


def _folder(directory: Path) -> Path:
    return local_folder("dir", str(directory), "a folder of this machine: keys do not go to a store of objects")


Dir = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="The folder of the CA and of what it signs.", callback=_folder),
]
Days = Annotated[int, typer.Option("--days", min=1, max=36_500, metavar="DAYS", help="For how long it is valid.")]
Renew = Annotated[bool, typer.Option("--renew", help="Over one of that name; a node takes it up by itself.")]
FOLDER = Path("tls")


def ca(
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="How it calls itself.")] = "headwater",
    directory: Dir = FOLDER,
    days: Days = 3650,
) -> None:
    """Make a CA: ca.pem, to be given to all, and ca.key, to be kept."""
    from headwater.tls.making import Authority

    Authority.make(directory, name, days)
    path = directory / "ca.pem"
    report(f"{path}: give it to nodes (--tls-ca) and clients (trust_store=)", ca=str(path))


def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the files, and in the certificate.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="By which it is called: a name or an address; repeatable. --renew knows it.",
        ),
    ] = None,
    directory: Dir = FOLDER,
    days: Days = 397,
    renew: Renew = False,
) -> None:
    """Make a certificate for a node: NAME.pem and NAME.key."""
    hosts = tuple(host or ()) or (_hosts_of(directory / f"{name}.pem") if renew else ())
    if not hosts:
        raise OptionError("host", "", "given: a name or an address by which the node is called")
    _issue(directory, name, hosts, days, renew)
    paths = {"certificate": f"{directory / name}.pem", "key": f"{directory / name}.key"}
    report(f"headwater serve --tls-certificate {paths['certificate']} --tls-key {paths['key']} ...", **paths)


def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user.")],
    directory: Dir = FOLDER,
    days: Days = 397,
    renew: Renew = False,
) -> None:
    """Make a certificate by which a user logs in: NAME.pem and NAME.key. The node wants --tls-clients and the user."""
    _issue(directory, name, (), days, renew)
    files = f"client_certificate={directory / name}.pem&client_key={directory / name}.key"
    paths = {"certificate": f"{directory / name}.pem", "key": f"{directory / name}.key"}
    report(f"couchbases://HOST/BUCKET?trust_store={directory / 'ca.pem'}&{files}", **paths)


def show(file: Annotated[Path, typer.Argument(metavar="FILE", help="A PEM file.")]) -> None:
    """Tell whose a certificate is, who signed it, for which names, and from when to when it is valid."""
    from headwater.tls.certificates import read_pem

    try:
        certificates = read_pem(file.read_bytes())
    except ValueError:
        raise OptionError("FILE", str(file), "a PEM file with a certificate") from None
    names = (*certificates.dns_names, *certificates.addresses, *certificates.emails, *certificates.uris)
    days = {"begins": certificates.begins.isoformat(), "ends": certificates.ends.isoformat()}
    answer(str(certificates), subject=certificates.subject, issuer=certificates.issuer, names=names, **days)


def _hosts_of(file: Path) -> tuple[str, ...]:
    """Return the names and addresses in an existing certificate; none if there is none."""
    from headwater.tls.certificates import read_pem

    try:
        certificates = read_pem(file.read_bytes())
    except FileNotFoundError:
        return ()
    except ValueError:
        raise OptionError("NAME", file.stem, f"the name of a certificate: {file} is none") from None
    return (*certificates.dns_names, *certificates.addresses)


def _issue(directory: Path, name: str, hosts: tuple[str, ...], days: int, renew: bool) -> None:
    from headwater.tls.making import Authority, Pair

    if name in ("", ".", "..", "ca") or "/" in name:
        raise OptionError("NAME", name, "a name for a file, and not that of the CA")
    files = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    existing = next((each for each in (files.key, files.certificate) if Path(each).exists()), None)
    if existing is not None and not renew:
        raise OptionError("dir", str(existing), "a new file: it is there already; --renew puts another in its place")
    Authority.open(directory).issue(files, name, hosts=hosts, lifetime=timedelta(days=days), replace=renew)


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("ca", ca, examples("headwater tls ca --dir ./tls")),
    ("node", node, examples("headwater tls node n1 --host n1.example --host 10.0.0.1 --dir ./tls")),
    ("user", user, examples("headwater tls user ann --dir ./tls")),
    ("show", show, examples("headwater tls show ./tls/n1.pem")),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
