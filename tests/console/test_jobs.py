"""The page of jobs: each form gives a command line that the command line takes, and begins nothing."""

import html
import re
import shlex

import pytest
import typer

from headwater.cli.app import app
from headwater.console.jobs import command_of, fields_of
from headwater.errors import OptionError
from headwater.pipelines.jobs import JOBS, Mirror, Observer
from headwater.testing import Node

from .support import console

URL = "couchbase://h:1/default"


def filled(name: str) -> dict[str, str]:
    """The fields of a form in which all that is required was typed."""
    values = {"cache": "redis://h:6379", "source": URL, "target": "couchbase://i:1/default"}
    return {each.field: values.get(each.field, "h:1") for each in fields_of(JOBS[name]) if each.is_required}


@pytest.mark.parametrize("name", JOBS)
def test_the_command_line_of_a_form_is_one_that_the_command_takes(name: str) -> None:
    command = shlex.split(command_of(JOBS[name], filled(name)))
    assert command[:2] == ["headwater", name]
    known = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    known.make_context(name, command[2:], resilient_parsing=False)


@pytest.mark.parametrize("name", JOBS)
def test_a_form_has_a_field_for_each_option_but_passwords_and_old_names(name: str, node: Node) -> None:
    with console(node.url) as browser:
        page = browser.get("/jobs").text
    (form,) = re.findall(rf'<form method="get" action="/jobs/{name}">(.*?)</form>', page, re.DOTALL)
    names = re.findall(r'<(?:input|select)[^>]* name="(\w+)"', form)
    assert names == [each.field for each in fields_of(JOBS[name])] and "password" not in names
    assert "{done}" not in html.unescape(form)


def test_only_what_differs_from_the_default_is_in_the_command() -> None:
    given = {"source": URL, "to": "./my lake", "dropped": "keep", "upkeep": "upkeep", "unfold": "", "conf": "a=1 b=2"}
    assert command_of(Mirror, given) == f"headwater mirror {URL} --to './my lake' --conf a=1 --conf b=2"
    other = {"source": URL, "to": "lake", "upkeep": "no-upkeep", "unfold": "yes", "dropped": "drop"}
    assert command_of(Mirror, other) == f"headwater mirror {URL} --to lake --no-upkeep --unfold --dropped drop"


@pytest.mark.parametrize(
    "fields", [{}, {"source": URL, "hot": "many"}, {"source": URL, "window_seconds": "soon"}, {"source": "--help"}]
)
def test_what_the_command_would_refuse_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        command_of(Observer, fields)


def test_the_page_shows_the_command_with_what_was_typed_and_refuses_what_is_none(node: Node) -> None:
    with console(node.url) as browser:
        shown = browser.get("/jobs/mirror", params={"source": URL, "to": "it's", "unfold": "yes"})
        assert (
            "headwater mirror couchbase://h:1/default --to &#39;it&#39;&#34;&#39;&#34;&#39;s&#39; --unfold"
            in shown.text
        )
        assert '<input type="checkbox" name="unfold" value="yes" checked>' in shown.text
        assert browser.get("/jobs/nothing").status_code == 400 == browser.get("/jobs/observe").status_code
        assert node.url in browser.get("/jobs").text
