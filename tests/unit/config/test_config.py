"""Configurations: from the command line, from YAML, from Python."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from atoll.cli.options import given
from atoll.cli.run import compare, run
from atoll.config import NEUTRAL, Config, flag, from_dict, read_yaml
from atoll.engine.setup import build_setup
from atoll.errors import AtollError

# A value for every field that differs from its default, as the command line has it and as it should be read.
GIVEN: dict[str, tuple[list[str], Any]] = {
    "method": (["ditto"], "ditto"),
    "data": (["--data", "mnist"], "mnist"),
    "data_dir": (["--data-dir", "d"], "d"),
    "rows": (["--rows", "500"], 500),
    "test_rows": (["--test-rows", "90"], 90),
    "clients": (["--clients", "7"], 7),
    "metric": (["--metric", "./m.py:f", "--metric", "g"], ("./m.py:f", "g")),
    "new_clients": (["--new-clients", "2"], 2),
    "partition": (["--partition", "iid"], "iid"),
    "split": (["--split", "client_82"], "client_82"),
    "public": (["--public", "30"], 30),
    "public_data": (["--public-data", "mnist"], "mnist"),
    "target_of": (["--target-of", "generic"], "generic"),
    "task": (["--task", "regression"], "regression"),
    "transform": (["--transform", "none"], "none"),
    "standardise": (["--standardise", "site"], "site"),
    "missing": (["--missing", "indicator"], "indicator"),
    "columns": (["--columns", "own"], "own"),
    "models": (["--models", "mlp,linear"], ("mlp", "linear")),
    "adapter": (["--adapter", "lora:2,lora:4"], ("lora:2", "lora:4")),
    "width": (["--width", "16"], 16),
    "proxy": (["--proxy", "8-16"], "8-16"),
    "server_model": (["--server-model", "lenet"], "lenet"),
    "shared_model": (["--shared-model", "mlp_a"], "mlp_a"),
    "init": (["--init", "per_client"], "per_client"),
    "rounds": (["--rounds", "3"], 3),
    "wait_free": (["--wait-free"], True),
    "rate": (["--rate", "0.5"], 0.5),
    "strikes": (["--strikes", "2"], 2),
    "max_norm": (["--max-norm", "50"], 50.0),
    "robust": (["--robust", "trimmed:0.2"], "trimmed:0.2"),
    "sums": (["--sums", "fixed"], "fixed"),
    "track": (["--track", "wandb", "--track", "mlflow"], ("wandb", "mlflow")),
    "drop": (["--drop", "0.3:before"], "0.3:before"),
    "slow": (["--slow", "0.2:4"], "0.2:4"),
    "stragglers": (["--stragglers", "0.1:10"], "0.1:10"),
    "deadline": (["--deadline", "2.5"], 2.5),
    "poison": (["--poison", "0.2:swap"], "0.2:swap"),
    "min_class_count": (["--min-class-count", "10"], 10),
    "cov_source": (["--cov-source", "means"], "means"),
    "dp": (["--dp", "8:1e-6"], "8:1e-6"),
    "dp_clip": (["--dp-clip", "0.5"], 0.5),
    "dp_rounds": (["--dp-rounds", "4"], 4),
    "dp_seed": (["--dp-seed", "1"], 1),
    "optimiser": (["--optimiser", "adam"], "adam"),
    "lr": (["--lr", "0.2"], 0.2),
    "lr_schedule": (["--lr-schedule", "cosine:10"], "cosine:10"),
    "epochs": (["--epochs", "0.5"], 0.5),
    "steps": (["--steps", "20"], 20),
    "batch_size": (["--batch-size", "8"], 8),
    "settings": (["--set", "lam=0.5", "--set", "optim.momentum=0"], {"lam": "0.5", "optim.momentum": "0"}),
    "terms": (["--with", "dw:mu=0.1,form=ata", "--with", "proximal"], ("dw:mu=0.1,form=ata", "proximal")),
    "seed": (["--seed", "9"], 9),
    "backend": (["--backend", "loop"], "loop"),
    "device": (["--device", "cuda"], "cuda"),
    "workers": (["--workers", "2"], 2),
    "store": (["--store", "disk"], "disk"),
    "cache": (["--cache", "5"], 5),
    "clock": (["--clock", "speed=1e9"], "speed=1e9"),
    "global_test": (["--global-test"], True),
    "target": (["--target", "0.9"], 0.9),
    "schedule": (["--schedule", "buffered:2"], "buffered:2"),
    "topology": (["--topology", "ring"], "ring"),
    "until_download": (["--until-download"], True),
    "patience": (["--patience", "3"], 3),
    "until": (["--until", "0.9"], 0.9),
    "eval_every": (["--eval-every", "2"], 2),
    "checkpoint_every": (["--checkpoint-every", "3"], 3),
    "data_digest": (["--data-digest", "0123"], "0123"),
    "shift": (["--shift", "rotate:45"], "rotate:45"),
    "keep_models": (["--keep-models", "no"], False),
    "out": (["--out", "o"], "o"),
}


def parsed(words: list[str]) -> Config:
    """The configuration that ``atoll run`` makes of these words."""
    options = run.make_context("run", words, help_option_names=["-h", "--help"]).params  # click keeps them
    method = {"method": options["method"]} if options["method"] else {}
    own = {f.name: options[f.name] for f in fields(Config) if f.name in options and f.name != "method"}
    return from_dict({**given(own, options["config_file"]), **method})


def test_every_field_has_a_case() -> None:
    assert set(GIVEN) == {f.name for f in fields(Config)}


@pytest.mark.parametrize("name", GIVEN)
def test_option_sets_its_field_and_no_other(name: str) -> None:
    words, value = GIVEN[name]
    assert getattr(Config(), name) != value
    assert parsed(words) == replace(Config(), **{name: value})


def test_epochs_and_steps_together_are_refused() -> None:
    with pytest.raises(AtollError, match="--epochs and --steps exclude each other"):
        Config(epochs=1, steps=5)


def test_run_without_options_has_all_defaults() -> None:
    assert parsed([]) == Config()


@pytest.mark.parametrize("command", [run, compare])
def test_every_option_is_explained_with_its_default(command: click.Command) -> None:
    options = {o.name: o for o in command.params if isinstance(o, click.Option)}
    for f in fields(Config):
        if f.name != "method":
            about = str(options[f.name].help)
            assert len(about) > 15
            assert options[f.name].opts == [flag(f.name)]
            if f.name in ("rounds", "rate", "partition", "cache"):
                assert str(f.default) in about


# -- YAML -------------------------------------------------------------------------------------------------------------


def everything() -> Config:
    values = {name: value for name, (_, value) in GIVEN.items()}
    return Config(**values | {"steps": None})  # which epochs exclude


@pytest.mark.parametrize("config", [Config(), everything()])
def test_yaml_gives_back_the_same_configuration(config: Config, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert from_dict(read_yaml(tmp_path / "c.yaml")) == config


def test_yaml_lists_every_field() -> None:
    assert list(yaml.safe_load(Config().to_yaml())) == [f.name for f in fields(Config)]


def test_options_override_the_file_and_settings_are_merged(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("method: ditto\nrounds: 9\nseed: 4\nsettings: {lam: 0.5, optim.lr: 0.1}\n")
    config = parsed(["--config", str(tmp_path / "c.yaml"), "--rounds", "2", "--set", "lam=0.7"])
    assert (config.method, config.rounds, config.seed) == ("ditto", 2, 4)
    assert config.settings == {"lam": "0.7", "optim.lr": 0.1}


def test_yaml_values_of_other_types_are_converted() -> None:
    config = from_dict({"models": "mlp,linear", "proxy": 8, "terms": "dw:mu=0.1,form=ata", "rounds": 5.0, "lr": "1e-3"})
    assert config.models == ("mlp", "linear")
    assert config.proxy == "8"
    assert config.terms == ("dw:mu=0.1,form=ata",)
    assert (config.rounds, config.lr) == (5, 0.001)


def test_large_seeds_keep_every_digit() -> None:
    seed = 2**62 + 1
    assert Config(seed=seed).seed == seed
    assert Config(seed=str(seed)).seed == seed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds: 2\nrounds: 3", "'rounds' is given twice"),
        ("ruonds: 3", "Did you mean 'rounds'?"),
        ("learning: 3", "Known: "),
        ("3: x", "Unknown entry"),
        ("", "must contain entries"),
        ("- a\n- b", "must contain entries"),
        ("just words", "must contain entries"),
        ("a: [1", "not readable YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not readable YAML"),
        ("rounds: !!set {1}", "--rounds must be a whole number"),
    ],
)
def test_unreadable_configuration_file_error_gives_the_reason(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(AtollError, match=said.replace("?", r"\?")) as caught:
        from_dict(read_yaml(path), str(path))
    assert "c.yaml" in str(caught.value) or "--rounds" in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "a folder", "not text"])
def test_configuration_path_that_is_no_text_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    if kind == "a folder":
        path.mkdir()
    elif kind == "not text":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AtollError, match=r"c\.yaml"):
        read_yaml(path)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rounds", "many", "--rounds must be a whole number, not 'many'"),
        ("rounds", 2.5, "--rounds must be a whole number, not 2.5"),
        ("rounds", True, "--rounds must be a whole number, not True"),
        ("rounds", None, "--rounds must be a whole number"),
        ("rounds", [1], "--rounds must be a whole number"),
        ("rounds", float("inf"), "--rounds must be a whole number"),
        ("rounds", "1e999", "--rounds must be a whole number"),
        ("rounds", 0, "--rounds must be at least 1, not 0"),
        ("rounds", -3, "--rounds must be at least 1, not -3"),
        ("clients", 0, "--clients must be at least 1"),
        ("public", -1, "--public must be at least 0"),
        ("epochs", 0, "--epochs must be above 0"),
        ("steps", 0, "--steps must be at least 1"),
        ("batch_size", 0, "--batch-size must be at least 1"),
        ("width", 0, "--width must be at least 1"),
        ("cache", 0, "--cache must be at least 1"),
        ("eval_every", 0, "--eval-every must be at least 1"),
        ("checkpoint_every", 0, "--checkpoint-every must be at least 1"),
        ("rate", 0, "--rate must be above 0 and at most 1"),
        ("rate", 1.5, "--rate must be above 0 and at most 1"),
        ("rate", float("nan"), "--rate must be a number"),
        ("rate", "half", "--rate must be a number, not 'half'"),
        ("target", 0, "--target must be above 0"),
        ("task", "regresion", "Did you mean 'regression'?"),
        ("lr", 0, "--lr must be above 0"),
        ("lr", float("inf"), "--lr must be a number"),
        ("robust", "mediam", "Did you mean 'median'?"),
        ("robust", "trimmed:0.7", "--robust cannot be 'trimmed:0.7'"),
        ("robust", 3, "Unknown rule '3' for --robust"),
        ("seed", "x", "--seed must be a whole number"),
        ("backend", "vmpa", "Did you mean 'vmap'?"),
        ("store", "dsik", "Did you mean 'disk'?"),
        ("init", "shard", "Did you mean 'shared'?"),
        ("optimiser", "adma", "Did you mean 'adam'?"),
        ("models", ["mlp", ""], "--models must be a list of names"),
        ("models", [3], "--models must be a list of names"),
        ("models", {"a": 1}, "--models must be a list of names"),
        ("terms", 3, "--with must be a list of names"),
        ("settings", ["lam=1"], "--set must be name=value pairs"),
        ("settings", None, "--set must be name=value pairs"),
        ("settings", {1: 2}, "--set must be name=value pairs"),
        ("method", None, "--method must be text"),
        ("method", ["fedavg"], "--method must be text"),
        ("data", True, "--data must be text"),
        ("global_test", "perhaps", "--global-test must be true or false"),
    ],
)
def test_wrong_value_error_names_the_option(name: str, value: Any, said: str) -> None:
    with pytest.raises(AtollError) as caught:
        from_dict({name: value})
    assert said in str(caught.value)


def test_number_too_large_for_a_float_is_refused_without_a_crash() -> None:
    with pytest.raises(AtollError, match="--lr must be a number"):
        from_dict({"lr": 10**400})


# -- what decides the numbers -----------------------------------------------------------------------------------------


def test_identity_excludes_options_that_do_not_change_results() -> None:
    assert set(Config().identity()) == {f.name for f in fields(Config)} - NEUTRAL
    for name, (_, value) in GIVEN.items():
        changed = replace(Config(), **{name: value})
        assert (changed.identity() == Config().identity()) == (name in NEUTRAL)


def test_optimiser_options_contain_only_given_ones() -> None:
    assert Config().optimiser_options == {}
    assert Config(steps=3).optimiser_options == {"steps": 3}
    assert Config(lr=0.1, epochs=2).optimiser_options == {"lr": 0.1, "epochs": 2}


def test_word_none_is_a_choice_where_listed_and_null_elsewhere() -> None:
    assert (Config(cov_source="none").cov_source, Config(cov_source=None).cov_source) == ("none", None)
    assert Config(dp="none").dp is None


@pytest.mark.parametrize(
    ("method", "settings", "resolved"),
    [
        ("fedavg", {}, {"optimiser": "sgd", "lr": 0.01, "epochs": 5, "steps": None, "batch_size": 32}),
        ("fedavg", {"optim.steps": 7}, {"epochs": None, "steps": 7}),
        ("ditto", {"personal_optim.lr": 0.5}, {"lr": None, "epochs": 5}),  # two trainings that differ in their rate
        ("pfedes", {"proxy_optim.lr": 0.0}, {"lr": None}),
    ],
)
def test_configuration_of_a_run_names_the_values_in_use(
    method: str, settings: dict[str, object], resolved: dict[str, object]
) -> None:
    config = build_setup(Config(method=method, settings=settings, models=("cnn1",), clients=2, rows=100)).config

    assert {name: getattr(config, name) for name in resolved} == resolved


def test_configuration_of_a_run_has_the_number_of_clients_that_was_the_default() -> None:
    assert build_setup(Config(method="fedavg", models=("linear",), rows=200)).config.clients == 10
