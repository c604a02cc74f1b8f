"""`headwater console`: a web page for operators, served from this machine."""

from importlib.util import find_spec
from typing import Annotated

import typer

from headwater.cli.extras import lacking
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, remark
from headwater.cli.options import DEFAULT_URL, Password, User, connect, examples
from headwater.cli.stopping import until_stopped
from headwater.errors import TlsError, TransportError, hide_logins

PART = ("first", 80)
EXAMPLES = examples(
    "headwater console",
    "headwater console couchbase://10.0.0.1:11210/orders --user ann",
    "headwater console --lake ./lake/default",
    "headwater console couchbases://10.0.0.1/orders?trust_store=ca.pem --user ann --password-file ann.secret",
)
EXITS = {0: "Ctrl-C or SIGTERM ended it", 1: "the node refuses the login, or the extra is missing"}


def console(
    node: Annotated[
        str, typer.Argument(metavar="URL", envvar="HEADWATER_NODE", help="A node of the bucket, and the bucket.")
    ] = DEFAULT_URL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve it on; 0 takes a free one.")] = 11280,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to serve it on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="A name by which browsers call it; may be given more than once."),
    ] = None,
    lake: Annotated[
        list[str] | None,
        typer.Option("--lake", metavar="DIR", help="The folder of a mirror's table; may be given more than once."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve it to a network, where pages and their cookie can be read.")
    ] = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Serve the console: a bucket's cluster, streams, documents and mirrors in a browser. Needs the extra `console`.

    Prints the address to open, which has a key in it: whoever has it may do what the user may. The user's password
    stays in this process. A node that does not answer is no reason not to begin; one that refuses the login is. Ctrl-C
    ends it.
    """
    _check_installed()
    from headwater.client.routing import parse
    from headwater.console.desk import ConsoleSettings
    from headwater.console.server import ConsoleServer, names_of

    target = parse(node)
    user, password = target.login(user, password)
    names = names_of(host, name or [], insecure=insecure)
    _check_login(node if target.user is None else target.url, user, password)
    server = ConsoleServer(ConsoleSettings(target, user, password, names, tuple(lake or ()), port), host)
    with until_stopped():
        server.run(lambda url: answer(f"ready {url}", ready=url))


def _check_installed() -> None:
    """Report all missing libraries before a node is asked."""
    if missing_modules := [each for each in ("starlette", "uvicorn", "jinja2") if find_spec(each) is None]:
        raise CommandError(
            lacking(missing_modules)
            or f"{', '.join(missing_modules)} is missing: pip install {' '.join(missing_modules)}"
        )


def _check_login(url: str, user: str | None, password: str | None) -> None:
    """Raise a permanent refusal of the login; a node that is away now may come."""
    try:
        connect(url, user, password).close()
    except TlsError:
        raise
    except TransportError as error:
        remark(f"{hide_logins(str(error))}; the console shows it when it comes")
