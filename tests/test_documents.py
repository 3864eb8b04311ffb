"""The examples of the documents do what they say."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["parsing.md"])
def test_examples_run(name: str) -> None:
    failed, tried = doctest.testfile(str(DOCS / name), module_relative=False)
    assert tried > 5
    assert failed == 0
