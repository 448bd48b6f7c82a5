"""The issue forms ask for what a maintainer needs first: the output of `jaxenvs doctor`."""

from pathlib import Path

import pytest
import yaml

FORMS = sorted((Path(__file__).parents[2] / ".github/ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_requires_the_report_of_the_machine(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = {each["id"]: each for each in form["body"]}
    assert len(fields) == len(form["body"])  # GitHub refuses a form in which two fields share an id
    assert "`jaxenvs doctor`" in fields["doctor"]["attributes"]["label"]
    assert all(each["validations"]["required"] for each in fields.values())


def test_there_is_a_form_for_bugs_and_one_for_performance():
    assert [path.stem for path in FORMS] == ["bug", "performance"]
