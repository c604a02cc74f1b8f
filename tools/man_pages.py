"""Write man/*.1 from the commands themselves: a page for the program, and one for each command or group of them.

`make man` runs this; the wheel has the pages as share/man/man1. tests/test_man_pages.py fails when one is stale.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import headwater
from headwater.cli.app import app
from headwater.cli.exits import GENERAL, exits_of
from headwater.cli.options import unescaped
from headwater.cli.plain_help import usage

FOLDER = Path(__file__).parent.parent / "man"
ENVIRONMENT = {
    "HEADWATER_CONFIG": "a TOML file of options, for a node and all commands",
    "HEADWATER_NODE": "the node that commands talk to: couchbase://HOST:PORT/BUCKET",
    "HEADWATER_USER, HEADWATER_PASSWORD, HEADWATER_PASSWORD_FILE": "who asks, and the password or a file with it",
    "HEADWATER_CACHE": "where compiled kernels are kept; else XDG_CACHE_HOME/headwater or ~/.cache/headwater",
}


def pages() -> dict[str, str]:
    """Return all pages, by the name of the file."""
    group: Any = typer.main.get_command(app)
    texts = {"headwater.1": "".join(_program(group))}
    for name, command in group.commands.items():
        texts[f"headwater-{name}.1"] = "".join(_command_page(name, command))
    return texts


def _program(group: Any) -> Iterator[str]:
    yield from _head("headwater", group.help)
    yield ".SH SYNOPSIS\n" + _bold("headwater") + " [\\-\\-config \\fIFILE\\fR] \\fICOMMAND\\fR [OPTIONS]\n"
    yield ".SH COMMANDS\n"
    for name, command in group.commands.items():
        yield _tagged(f"\\fBheadwater\\-{_text(name)}\\fR(1)", _first(command.help))
    yield ".SH OPTIONS\n" + "".join(_options(group.params))
    yield ".SH ENVIRONMENT\n" + "".join(_tagged(_bold(name), about) for name, about in ENVIRONMENT.items())
    yield ".PP\nThe command line comes first, then the environment, then the file.\n"
    yield _exits(dict(GENERAL))


def _command_page(name: str, command: Any) -> Iterator[str]:
    yield from _head(f"headwater-{name}", command.help)
    if not hasattr(command, "commands"):
        yield ".SH SYNOPSIS\n" + _synopsis(name, command)
        yield from _body(name, command, ".SH")
    else:
        yield ".SH SYNOPSIS\n" + ".br\n".join(
            _synopsis(f"{name} {each}", one) for each, one in command.commands.items()
        )
        yield ".SH DESCRIPTION\n" + _paragraphs(command.help)
        for each, one in command.commands.items():
            yield f".SH {_text(each).upper()}\n"
            yield from _body(f"{name} {each}", one, ".SS")
    yield ".SH SEE ALSO\n\\fBheadwater\\fR(1)\n"


def _body(name: str, command: Any, heading: str) -> Iterator[str]:
    yield (".SH DESCRIPTION\n" if heading == ".SH" else "") + _paragraphs(command.help)
    yield f"{heading} {_case('Options', heading)}\n" + "".join(_options(command.params))
    yield _exits(exits_of(name, command), heading)
    examples = [line.strip() for line in (command.epilog or "").split("\n\n")[1:]]
    if examples:
        yield f"{heading} {_case('Examples', heading)}\n" + "".join(f".nf\n{_text(line)}\n.fi\n" for line in examples)


def _case(title: str, heading: str) -> str:
    return title.upper() if heading == ".SH" else title


def _head(name: str, about: str) -> Iterator[str]:
    yield f".\\\" Written by tools/man_pages.py from the commands' own help.\n"  # noqa: F541
    yield f'.TH "{name.upper()}" 1 "" "headwater {headwater.__version__}" "headwater"\n'
    yield f".SH NAME\n{_text(name)} \\- {_first(about)}\n"


def _synopsis(name: str, command: Any) -> str:
    arguments = [usage(param) for param in command.params if param.param_type_name == "argument"]
    return (
        " ".join([_bold(f"headwater {name}"), *(f"\\fI{_text(argument)}\\fR" for argument in arguments), "[OPTIONS]"])
        + "\n"
    )


def _options(parameters: Any) -> Iterator[str]:
    for parameter in parameters:
        if parameter.hidden:
            continue
        if parameter.param_type_name == "argument":
            yield _tagged(f"\\fI{_text(parameter.metavar or parameter.name.upper())}\\fR", _text(parameter.help or ""))
            continue
        names = ", ".join(_bold(name) for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag or not parameter.metavar else f" \\fI{_text(parameter.metavar)}\\fR"
        variable = f" Environment: {_text(parameter.envvar)}." if parameter.envvar else ""
        yield _tagged(names + value, _text(" ".join((parameter.help or "").split())) + variable)


def _exits(statuses: dict[int, str], heading: str = ".SH") -> str:
    meanings = "".join(_tagged(_bold(str(status)), _text(meaning)) for status, meaning in statuses.items())
    return f"{heading} {_case('Exit status', heading)}\n{meanings}"


def _tagged(tag: str, text: str) -> str:
    return f".TP\n{tag}\n{text}\n"


def _bold(text: str) -> str:
    return f"\\fB{_text(text)}\\fR"


def _paragraphs(text: str) -> str:
    return "".join(f".PP\n{_text(' '.join(part.split()))}\n" for part in text.split("\n\n"))


def _first(text: str) -> str:
    """Return the first sentence of a text, without its full stop, in roff."""
    return _text(re.split(r"(?<=[^.])\.\s|\.$", " ".join(text.split()), maxsplit=1)[0])


def _text(text: str) -> str:
    """Return a text in roff: backslashes and dashes are letters, and no line begins like a request."""
    escaped = unescaped(text).replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main() -> None:
    """Write the pages, and remove those of commands that no longer exist."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.1"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
