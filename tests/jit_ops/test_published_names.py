"""Published Python code: the NamedTuples and dtypes of its annotations, and results that are refused."""

from __future__ import annotations

import published_names as code
import pytest
import torch
from published_names import Point
from workers import Group

import weft

X = torch.ones(2, dtype=torch.float64)


def publish_all() -> None:
    for name in (
        *("positional", "by_name", "defaulted", "many", "several", "tripled"),
        *("dtype_of", "dtypes", "unannotated_dtype", "field_called_dtype", "some_bytes", "marked"),
        *("layout_of", "scheme", "cast", "cast_as", "echo", "wrong_dtype"),
    ):
        weft.publish(name, getattr(code, name))
    weft.publish("called", code.Called())


def ask(name: str, *args, **kwargs):
    return weft.call(f"worker0/{name}", *args, kwargs=kwargs)


@pytest.fixture(scope="module")
def pair():
    with Group(2) as group:
        group[0].call(publish_all)
        yield group
        group.shutdown()


def named_tuples() -> None:
    a, b = Point(1, 2), Point(3, 4)
    assert ask("positional", a, b) == "Point(1, 2),Point(3, 4)"
    assert ask("positional", a, b, a) == "Point(1, 2),Point(3, 4),Point(1, 2)"
    assert ask("by_name", p=a, q=b) == "p,q:Point(1, 2),Point(3, 4)"
    assert (ask("defaulted"), ask("defaulted", None)) == ("none", "none")
    assert ask("defaulted", a) == "Point(1, 2)"
    assert ask("many", (a, b), [a], {"k": b}) == "Point(1, 2),Point(3, 4),Point(1, 2),Point(3, 4)"
    assert [type(one) for one in ask("several", a)] == [Point, Point]
    for result, right in ((ask("called", a, torch.float64), (2, 1)), (ask("tripled", a), (3, 6))):
        assert (type(result), tuple(result)) == (Point, right)


def test_named_tuples_of_every_annotation(pair):
    pair[1].call(named_tuples)


def test_an_annotation_that_a_plain_tuple_does_not_tell_is_refused():
    with pytest.raises(TypeError, match=r"'point' cannot be published .*Optionals"):
        weft.publish("ambiguous", code.ambiguous)


def test_annotations_that_cannot_be_read_are_ignored():
    """Whatever reading them raises; the code itself runs all the same."""
    for function in (code.of_a_missing_attribute, code.of_no_python, code.of_itself):
        weft.publish("unread", function)
    weft.unpublish("unread")


def dtypes() -> None:
    assert ask("dtype_of", X) is torch.float64
    assert ask("dtypes", X) == {"a": [torch.float64, torch.int8]}


def test_an_annotated_dtype_comes_back(pair):
    pair[1].call(dtypes)


# Several of torch's names may be one dtype.
DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)


def every_dtype() -> None:
    assert ask("echo", DTYPES) == DTYPES
    assert ask("cast", X, torch.float16).dtype is torch.float16


def test_every_dtype_arrives_and_comes_back(pair):
    pair[1].call(every_dtype)


# The number of none, in this and in any later version.
@pytest.mark.parametrize("number", [-5, -1, 127, 1 << 40])
def test_a_number_of_no_dtype_is_refused_where_it_arrives(pair, number):
    for name, kwargs, argument in (
        ("cast", {"to": number}, "to"),
        ("cast_as", {"kinds": [number]}, "kinds"),
    ):
        error = pair[1].fails(ask, name, X, **kwargs)
        assert f"argument '{argument}': {number} is not the number of a dtype" in error.message
    assert pair[1].call(ask, "wrong_dtype", number) == number


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("unannotated_dtype", (X,), "annotate the result with torch.dtype"),
        ("field_called_dtype", (X,), "annotate the result with torch.dtype"),
        ("layout_of", (X,), "return its text: str(value)"),
        ("scheme", (), "return its text: str(value)"),
        ("some_bytes", (), "torch.frombuffer"),
        ("marked", (), "return a list"),
    ],
)
def test_a_result_that_would_change_on_the_way_is_refused(pair, name, args, says):
    error = pair[1].fails(ask, name, *args)
    assert "cannot be returned to another worker" in error.message and says in error.message
