"""The forms of a table: each is found again by its columns."""

import pytest

from headwater.lake.forms import FORMS, form_of
from headwater.lake.shape import PLAIN, TableForm, delta_field
from headwater.pipelines.jobs import Mirror


@pytest.mark.parametrize("form", [*FORMS, PLAIN], ids=lambda form: form.option or "plain")
def test_a_tables_columns_tell_its_form_also_when_others_were_added(form: TableForm) -> None:
    assert form_of(form.columns) is form
    assert form_of([*form.columns, delta_field("more", "long")]) is form


def test_each_form_is_an_option_of_the_mirror() -> None:
    assert [Mirror.typed(form.option) for form in FORMS] == ["--unfold", "--variant"]
