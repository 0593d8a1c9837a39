"""Names of partitions."""

import pytest

from atoll.data.partition.specs import parse
from atoll.errors import AtollError


@pytest.mark.parametrize(
    "spec",
    [
        "dirichlet",
        "dirichlet:",
        "dirichlet:many",
        "dirichlet:nan",
        "dirichlet:inf",
        "dirichlet:0.5:masked",
        "dirichlet:0.5:masked=often",
        "dirichlet:0.5:capped:client",
        "pathological",
        "pathological:0",
        "pathological:2.5",
        "pathological:-1",
        "pathological:2:cod",
        "pathological:" + "9" * 5000,
        "iid:3",
        "natural:x",
        "file:",
    ],
)
def test_error_for_a_malformed_spec_shows_the_form(spec):
    with pytest.raises(AtollError, match=rf"--partition cannot be '.*': .*\. Write {spec.partition(':')[0]}"):
        parse(spec)


@pytest.mark.parametrize("beta", ["0", "-1", "1e7"])
def test_beta_outside_its_range_is_refused(beta):
    with pytest.raises(AtollError, match="BETA must be a number above 0 and at most 1e\\+06"):
        parse(f"dirichlet:{beta}")


@pytest.mark.parametrize("share", ["0", "1.5"])
def test_mask_probability_outside_its_range_is_refused(share):
    with pytest.raises(AtollError, match="masked=P, with P a number above 0 and at most 1"):
        parse(f"dirichlet:1:masked={share}")


def test_error_for_a_misspelt_scheme_suggests_the_name():
    with pytest.raises(AtollError, match="Did you mean 'dirichlet'"):
        parse("dirichelt:0.5")


@pytest.mark.parametrize(
    ("spec", "normal"),
    [
        (" iid ", "iid"),
        ("pathological:02:strict", "pathological:2"),
        ("pathological:2:code", "pathological:2:code"),
        ("dirichlet:5e-1", "dirichlet:0.5"),
        ("dirichlet:1.0:capped", "dirichlet:1:capped"),
        ("dirichlet:0.123456789:client", "dirichlet:0.123456789:client"),
        ("dirichlet:10:masked=.70", "dirichlet:10:masked=0.7"),
        ("natural", "natural"),
    ],
)
def test_str_of_a_scheme_is_its_normal_form(spec, normal):
    assert str(parse(spec)) == normal
    assert parse(normal) == parse(spec)
