"""The grammar of option values: fields joined by colons, and NAME=VALUE pairs."""

from typing import Any

import pytest

from atoll.aggregation import robust_rules
from atoll.clients.metrics import load_metrics
from atoll.data import loading
from atoll.data.partition import specs as partitions
from atoll.engine.model_factory import PROXY, _split_name
from atoll.errors import AtollError
from atoll.experiments.search import parse_axis
from atoll.methods._factory import fill_from_option, regulariser
from atoll.models import foreign
from atoll.privacy.options import parse_target
from atoll.report.figures import parse_request
from atoll.simulation.clock import Devices
from atoll.simulation.faults import read_drop, read_lag, read_poison
from atoll.utils.parsing import Spec, anything, number, parse_options, parse_pair, parse_pairs, several, whole, word

RULE = Spec("krum:F:M, such as krum:2:5", whole("F"), whole("M", least=1, optional=True))


@pytest.mark.parametrize(
    ("text", "values"),
    [("krum:2", [2]), ("krum:2:5", [2, 5]), ("krum:2:", [2]), ("krum: 2 ", [2])],
)
def test_fields_are_read_in_order_and_optional_ones_may_be_left_out(text: str, values: list[int]) -> None:
    assert RULE.parse("--robust", text, skip=1) == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("krum", "F is missing"),
        ("krum:", "F is missing"),
        ("krum::5", "F is missing"),
        ("krum:x", "F must be a whole number of at least 0"),
        ("krum:-1", "F must be a whole number of at least 0"),
        ("krum:2:0", "M must be a whole number of at least 1"),
        ("krum:2:5:7", "M must be a whole number of at least 1"),
    ],
)
def test_syntax_error_names_option_text_reason_and_form(text: str, reason: str) -> None:
    with pytest.raises(AtollError) as caught:
        RULE.parse("--robust", text, skip=1)
    assert str(caught.value) == f"--robust cannot be {text!r}: {reason}. Write krum:F:M, such as krum:2:5."


def test_nothing_may_follow_a_name_without_fields() -> None:
    assert Spec("iid").parse("--partition", "iid", skip=1) == []
    with pytest.raises(AtollError, match="nothing may follow the name"):
        Spec("iid").parse("--partition", "iid:3", skip=1)


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        (number("X"), "a number"),
        (number("X", least=0, most=1), "a number from 0 to 1"),
        (number("X", above=0), "a number above 0"),
        (number("X", above=0, below=1), "a number above 0 and below 1"),
        (number("X", least=1), "a number at least 1"),
        (whole("X", least=1, most=9), "a whole number of at least 1 and at most 9"),
        (word("X", ("before", "after")), "before or after"),
        (several(whole("X"), "-"), "a whole number of at least 0, or several joined by '-'"),
    ],
)
def test_bounds_are_described_in_messages(field: Any, wanted: str) -> None:
    assert field.wanted == wanted


@pytest.mark.parametrize("text", ["0", "1", "nan", "inf", "-1", "x", ""])
def test_ends_that_are_excluded_and_texts_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(AtollError):
        Spec("X", number("X", above=0, below=1)).parse("--x", text)


def test_the_last_field_takes_the_rest_of_the_text() -> None:
    assert Spec("file:PATH", anything("PATH")).parse("--partition", "file:C:/a:b", skip=1) == ["C:/a:b"]


def test_pairs_keep_their_values_as_text_and_options_become_plain_values() -> None:
    assert parse_pair("--set", "a=b=c,d") == ("a", "b=c,d")
    assert parse_pairs("--clock", "", "speed=1e9,,spread=", ",", "") == {"speed": "1e9", "spread": ""}
    options = parse_options("--models", "", "a=1&b=0.5&c=TRUE&d=8-16&e=elu&f=-", "")
    assert options == {"a": 1, "b": 0.5, "c": True, "d": (8, 16), "e": "elu", "f": "-"}


REFUSED: list[tuple[Any, str, str]] = [
    (
        robust_rules.parse,
        "trimmed:x",
        "--robust cannot be 'trimmed:x': SHARE must be a number from 0 to 0.49. Write trimmed:",
    ),
    (parse_target, "8:2", "--dp cannot be '8:2': DELTA must be a number above 0 and below 1. Write EPSILON"),
    (read_drop, "2", "--drop cannot be '2': SHARE must be a number from 0 to 1. Write SHARE"),
    (lambda text: read_lag("--slow", text), "0.2", "--slow cannot be '0.2': FACTOR is missing. Write SHARE:FACTOR"),
    (read_poison, "0.2:", "--poison cannot be '0.2:': KIND is missing. Write SHARE:KIND"),
    (partitions.parse, "pathological:x", "--partition cannot be 'pathological:x': K must be a whole number"),
    (
        loading.load,
        "digits?a",
        "The data set cannot be 'digits?a': 'a' has no name and '=' before its value. Write NAME",
    ),
    (lambda text: parse_pair("--set", text), "lam", "--set cannot be 'lam': 'lam' has no name and '='"),
    (
        lambda text: fill_from_option(Devices(), text, "--clock"),
        "speed",
        "--clock cannot be 'speed': 'speed' has no name",
    ),
    (regulariser, "dw:mu", "--with cannot be 'dw:mu': 'mu' has no name and '=' before its value. Write NAME:FIELD"),
    (_split_name, "mlp:hidden", "--models cannot be 'mlp:hidden': 'hidden' has no name"),
    (lambda text: PROXY.parse("--proxy", text), "0-8", "--proxy cannot be '0-8': FILTERS must be a whole number"),
    (
        parse_request,
        "tsne:rows",
        "--figure cannot be 'tsne:rows': 'rows' has no name and '=' before its value. Write KIND",
    ),
    (parse_axis, "lam=2..1", "--grid cannot be 'lam=2..1': LOW must be below HIGH, and both finite. Write NAME=VALUE"),
    (
        lambda text: load_metrics([text], ()),
        "./f.py:",
        "--metric cannot be './f.py:': FILE or FUNCTION is missing. Write NAME",
    ),
    (
        lambda text: foreign(text, (1, 8, 8), 10, None, True, None, {}),  # type: ignore[arg-type]
        "timm:",
        "--models cannot be 'timm:': NAME is missing. Write timm:NAME, such as timm:resnet18.",
    ),
]


@pytest.mark.parametrize(("read", "text", "message"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_every_option_with_a_grammar_words_its_errors_alike(read: Any, text: str, message: str) -> None:
    with pytest.raises(AtollError) as caught:
        read(text)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(".")
