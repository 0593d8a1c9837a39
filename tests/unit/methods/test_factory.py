"""Methods from what a user wrote."""

from dataclasses import dataclass, fields
from typing import Any

import pytest

from atoll.config import Config
from atoll.core.hyperparams import setting
from atoll.core.method import Method
from atoll.core.optim.adam import Adam
from atoll.core.optim.base import Optimiser
from atoll.core.optim.sgd import SGD
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods._factory import OPTIMISERS, make, regulariser, setting_value, settings_of, split_variant
from atoll.methods._setting_values import convert
from atoll.methods.dcpfl import DCPFL
from atoll.methods.feddw import DW
from atoll.methods.fedprox import Proximal
from atoll.utils.parsing import parse_pair

METHODS = sorted(_registry.methods())


def said(name: str, settings: dict[str, Any] | None = None, terms: Any = (), optimiser: Any = None) -> str:
    """The message with which this is refused."""
    with pytest.raises(AtollError) as caught:
        make(name, settings, terms, optimiser)
    return str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_without_settings_a_method_is_as_its_class_says(name: str) -> None:
    assert make(name) == _registry.method(name)()


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_read_as_their_types_say() -> None:
    made: Any = make("dcpfl", {"lam": "0.25", "virtual": "1e3", "virtual_relu": "yes", "aux": "mse"})
    assert (made.lam, made.virtual, made.virtual_relu, made.aux) == (0.25, 1000, True, "mse")
    assert type(made.virtual) is int


def test_settings_may_have_their_types_already() -> None:
    made: Any = make("dcpfl", {"lam": 1, "virtual": 10.0, "virtual_relu": True})
    assert (made.lam, made.virtual, made.virtual_relu) == (1.0, 10, True)
    assert (type(made.lam), type(made.virtual)) == (float, int)


@pytest.mark.parametrize("word", ["true", "True", "yes", "1", True, 1])
def test_words_for_true_are_parsed(word: Any) -> None:
    assert make("dcpfl", {"virtual_relu": word}) == DCPFL(virtual_relu=True)


@pytest.mark.parametrize("word", ["false", "FALSE", "no", "0", False, 0])
def test_words_for_false_are_parsed(word: Any) -> None:
    assert make("dcpfl", {"virtual_relu": word}) == DCPFL(virtual_relu=False)


def test_parts_of_an_optimiser_are_set_one_by_one() -> None:
    made: Any = make("fedavg", {"optim.momentum": "0.5", "optim.lr": "0.2"})
    assert made.optim == SGD(momentum=0.5, lr=0.2)


def test_an_optimiser_is_chosen_by_name_and_brings_its_own_defaults() -> None:
    made: Any = make("ditto", {"optim": "adam", "optim.beta1": "0.8", "personal_optim": "adam"})
    assert made.optim == Adam(beta1=0.8)
    assert made.personal_optim == Adam()


@pytest.mark.parametrize(
    ("name", "field"),
    [("ditto", "personal_optim"), ("fedrep", "head_optim"), ("pfedes", "proxy_optim"), ("fedbabu", "finetune")],
)
def test_options_that_all_methods_share_go_to_all_training_of_a_client(name: str, field: str) -> None:
    made: Any = make(name, optimiser={"optimiser": "adam", "lr": 0.2, "epochs": 3, "batch_size": 7})
    assert made.optim == getattr(made, field) == Adam(lr=0.2, epochs=3, batch_size=7)


def test_shared_options_leave_training_at_the_server_and_inner_problems_alone() -> None:
    options = {"lr": 0.2, "batch_size": 7}
    assert make("fedgh", optimiser=options).server == make("fedgh").server  # type: ignore[attr-defined]
    inner = [make("pfedme", optimiser=given).personal_optim for given in (options, {})]  # type: ignore[attr-defined]
    assert inner[0] == inner[1]


def test_setting_of_one_optimiser_overrules_the_shared_option() -> None:
    made: Any = make("ditto", {"personal_optim.lr": 0.5}, optimiser={"lr": 0.2})
    assert (made.optim.lr, made.personal_optim.lr) == (0.2, 0.5)


def test_a_setting_overrules_a_shared_option() -> None:
    made: Any = make("fedavg", {"optim.lr": "0.3"}, optimiser={"lr": 0.2, "epochs": 2})
    assert (made.optim.lr, made.optim.epochs) == (0.3, 2)


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [
        ("none", int | None, None),
        ("null", float | None, None),
        (None, int | None, None),
        ("3", int | None, 3),
        (" 3 ", int, 3),
        ("-2", int, -2),
        ("1e-3", float, 0.001),
        (2, float, 2.0),
        ("x", str, "x"),
        (8, str, "8"),
        (SGD(), Optimiser, SGD()),
    ],
)
def test_convert_gives_value_of_the_requested_type(value: Any, kind: Any, read: Any) -> None:
    found = convert(value, kind, "here")
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 1}, "Unknown setting 'lr' of dcpfl. Did you mean 'optim.lr' or 'calibrate.lr'?"),
        ({"lma": 1}, "Unknown setting 'lma' of dcpfl. Did you mean 'lam'?"),
        ({"zzz": 1}, "Known: "),
        ({"lam": "much"}, "Setting dcpfl.lam must be a number, not 'much'"),
        ({"lam": ""}, "Setting dcpfl.lam must be a number"),
        ({"lam": None}, "Setting dcpfl.lam must be a number"),
        ({"lam": "nan"}, "Setting dcpfl.lam must be a number"),
        ({"lam": "inf"}, "Setting dcpfl.lam must be a number"),
        ({"lam": True}, "Setting dcpfl.lam must be a number"),
        ({"lam": -1}, "lam is -1"),
        ({"virtual": "1.5"}, "Setting dcpfl.virtual must be a whole number, not '1.5'"),
        ({"virtual": "inf"}, "Setting dcpfl.virtual must be a whole number"),
        ({"virtual_relu": "maybe"}, "Setting dcpfl.virtual_relu must be true or false, not 'maybe'"),
        ({"aux": ["l2"]}, "Setting dcpfl.aux must be text"),
        ({"aux": "l3"}, "aux is 'l3'"),
        ({"optim": "adma"}, "Unknown optimiser 'adma' for dcpfl.optim. Did you mean 'adam'?"),
        ({"optim": 3}, "Unknown optimiser"),
        ({"optim.lrr": 1}, "Unknown setting 'lrr' of dcpfl.optim. Did you mean 'lr'?"),
        ({"optim.": 1}, "Unknown optimiser '1' for dcpfl.optim"),
        ({"optim.lr.x": 1}, "has no parts"),
        ({"lam.x": 1}, "Setting dcpfl.lam has no parts: write lam=VALUE"),
        ({".lam": 1}, "Unknown setting"),
        ({"": 1}, "Unknown setting"),
        ({"needs": 1}, "Unknown setting"),
        ({"optim.beta1": 1}, "Unknown setting 'beta1' of dcpfl.optim"),  # it is Adam's, not SGD's
    ],
)
def test_wrong_settings_are_refused_with_the_reason(settings: dict[str, Any], message: str) -> None:
    assert message in said("dcpfl", settings)


def test_unknown_setting_lists_nested_settings_and_regularisers_that_have_it() -> None:
    text = said("fedavg", {"mu": 1})

    assert "Known: optim, optim.batch_size, optim.clip, optim.epochs, optim.lr" in text
    assert "--with dw:mu=VALUE" in text


@pytest.mark.parametrize("text", ["lam", "=1", "", "lam:1"])
def test_setting_without_name_or_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(AtollError, match=r"--set cannot be .* Write NAME=VALUE"):
        parse_pair("--set", text)


def test_setting_value_may_contain_an_equals_sign() -> None:
    assert parse_pair("--set", "a=b=c") == ("a", "b=c")


# -- variants ---------------------------------------------------------------------------------------------------------


def test_a_variant_sets_its_fields_and_settings_overrule_it() -> None:
    assert make("dcpfl:no-al") == DCPFL(lam=0.0)
    assert make("dcpfl:no-al", {"lam": "0.3"}) == DCPFL(lam=0.3)
    assert make("dcpfl:no-gc", {"lam": "0.3"}) == DCPFL(lam=0.3, virtual=0)


@pytest.mark.parametrize("name", METHODS)
def test_every_variant_differs_from_its_method(name: str) -> None:
    for variant in _registry.method(name).traits.variants:
        assert make(f"{name}:{variant}") != make(name)


def test_method_name_is_split_from_its_variant() -> None:
    assert split_variant("dcpfl:no-al") == ("dcpfl", "no-al")
    assert split_variant("dcpfl") == ("dcpfl", None)
    assert split_variant("dcpfl:") == ("dcpfl", None)


def test_unknown_variant_is_refused() -> None:
    assert "Unknown variant 'no-la' of dcpfl. Did you mean 'no-al'?" in said("dcpfl:no-la")
    assert "local has no variants" in said("local:x")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dcpfl:lam=0.25", {"lam": 0.25}),
        ("dcpfl:lam=0.25,virtual=3", {"lam": 0.25, "virtual": 3}),
        ("dcpfl:optim.lr=1e+0,calibrate.epochs=2", {"optim.lr": 1.0, "calibrate.epochs": 2}),
        ("dcpfl:no-gc,lam=0.25", {"virtual": 0, "lam": 0.25}),
        ("dcpfl:no-gc,virtual=3", {"virtual": 3}),  # a setting overrules that of a variant
    ],
)
def test_settings_behind_the_colon_are_those_given_apart(name: str, settings: dict[str, Any]) -> None:
    assert make(name) == make("dcpfl", settings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dcpfl:lma=1", "Unknown setting 'lma' of dcpfl. Did you mean 'lam'?"),
        ("dcpfl:", "Nothing follows the colon of 'dcpfl:'. Write METHOD:VARIANT or METHOD:SETTING=VALUE."),
        ("dcpfl:lam=", "Setting dcpfl.lam must be a number, not ''"),
        ("dcpfl:lam", "dcpfl has no variant 'lam', but a setting. Write its value: dcpfl:lam=VALUE."),
        ("dcpfl:lam=1,lam=2", "The method cannot be 'dcpfl:lam=1,lam=2': lam is given twice"),
        ("dcpfl:no-al,lam", "'lam' has no name and '=' before its value. Write METHOD:SETTING=VALUE"),
        ("dcpfl:lam=1,no-al", "'no-al' has no name and '=' before its value"),
        ("local:x", "local has no variants. Settings are written with their values, as local:SETTING=VALUE."),
    ],
)
def test_wrong_text_behind_the_colon_is_refused_with_the_reason(name: str, message: str) -> None:
    assert message in said(name)


def test_setting_that_contradicts_the_one_behind_the_colon_is_refused() -> None:
    """The name is the label in tables, which would tell of another value than the one that ran."""
    assert "'dcpfl:lam=1' says what lam is, and lam=2 is given as well. Give it once." in said(
        "dcpfl:lam=1", {"lam": 2}
    )


# -- regularisers -----------------------------------------------------------------------------------------------------


def test_regularisers_are_added_in_order() -> None:
    made: Any = make("fedavg", terms=["dw:mu=0.3", "proximal:mu=0.7"])
    assert tuple(made.regularisers) == (DW(mu=0.3), Proximal(0.7))


def test_a_regulariser_with_several_settings() -> None:
    plain = DW()
    other = next(f for f in fields(DW) if f.name != "mu" and isinstance(getattr(plain, f.name), bool))
    built: Any = regulariser(f"dw:mu=0.2,{other.name}={not getattr(plain, other.name)}")
    assert built.mu == 0.2
    assert getattr(built, other.name) is not getattr(plain, other.name)


def test_regularisers_join_those_of_the_method() -> None:
    made: Any = make("fedprox", terms=["dw"])
    assert [type(r) for r in made.terms()] in ([Proximal, DW], [DW, Proximal])


@pytest.mark.parametrize(
    ("name", "terms", "message"),
    [
        ("local", ["dw"], "local takes no regularisers. Methods that do: "),
        ("dcpfl", ["proximal"], "dcpfl takes no regularisers"),
        ("fedavg", ["proximl"], "Unknown regulariser 'proximl'. Did you mean 'proximal'?"),
        ("fedavg", [""], "Unknown regulariser"),
        ("fedavg", ["dw:mu"], "--with cannot be 'dw:mu': 'mu' has no name"),
        ("fedavg", ["dw:fomr=1"], "Unknown setting 'fomr' of dw. Did you mean 'form'?"),
        ("fedavg", ["dw:mu=x"], "Setting dw.mu must be a number, not 'x'"),
        ("fedavg", ["dw", "dw:mu=0.5"], "the same regulariser twice"),
        ("fedprox", ["proximal"], "the same regulariser twice"),
        ("feddw", ["dw"], "the same regulariser twice"),
    ],
)
def test_unsuitable_regularisers_are_refused(name: str, terms: list[str], message: str) -> None:
    assert message in said(name, terms=terms)


# -- listings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Untrained(Method[Any, Any, Any, Any]):
    lam: float = setting(0.1, "strength", "chosen here")


def test_a_method_without_local_training_refuses_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "method", lambda name: Untrained)
    assert "untrained has no optimiser of local training to set" in said("untrained", optimiser={"lr": 1.0})


@pytest.mark.parametrize("name", METHODS)
def test_every_listed_setting_can_be_set_to_what_it_is(name: str) -> None:
    made = make(name)
    listed = {s.name: s.default for s in settings_of(made)}
    assert make(name, listed) == made
    assert make(name, {key: str(value) for key, value in listed.items()}) == made


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_says_what_it_means_and_where_its_default_comes_from(name: str) -> None:
    for s in settings_of(make(name)):
        assert s.meaning, s.name
        assert s.source or s.default in OPTIMISERS, s.name  # an optimiser's parts say where theirs come from


@pytest.mark.parametrize(
    ("path", "written", "value"),
    [
        ("lam", "0.50", 0.5),
        ("virtual", "1e3", 1000),
        ("virtual_relu", "yes", True),
        ("optim", "adam", "adam"),
        ("calibrate.lr", "1", 1.0),
    ],
)
def test_recorded_setting_has_its_converted_value(path: str, written: str, value: object) -> None:
    recorded = build_setup(Config(method="dcpfl", settings={path: written})).config.settings[path]
    assert recorded == value
    assert type(recorded) is type(value)


@pytest.mark.parametrize(
    ("name", "variant", "setting", "default", "published"),
    [
        ("fedprox", "feddw", "mu", 1.0, 0.01),
        ("moon", "feddw", "mu", 1.0, 5.0),
        ("pfedme", "dnn", "personal_optim.lr", 0.01, 0.09),
        ("pfedme", "dnn", "optim.lr", 0.01, 0.005),
        ("scaffold", "published", "optim.clip", 10.0, 0.0),
        ("fedtgp", "published", "lam_width", 512, 0),
        ("ktpfl", "published", "temperature", 1.0, 10.0),
        ("fedhenn", "published", "eta0", 0.1, 0.01),
        ("fedhkd", "published", "sigma", 0.0, 2.0),
        ("fedmd", "published", "first_epochs", 1, 25),
    ],
)
def test_published_values_other_than_the_defaults_have_a_variant(
    name: str, variant: str, setting: str, default: float, published: float
) -> None:
    assert setting_value(make(name), setting) == default
    assert setting_value(make(f"{name}:{variant}"), setting) == published


def test_personal_models_of_ditto_train_as_long_as_the_global_one() -> None:
    assert setting_value(make("ditto"), "personal_optim.epochs") == setting_value(make("ditto"), "optim.epochs") == 5
