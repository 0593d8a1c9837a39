"""The scale ``full`` of every recipe is the setting of its paper: facts from the papers, beside what would run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.config import Config
from atoll.data.catalogue import KNOWN
from atoll.experiments import papers
from atoll.experiments.paper_planning import PlannedRun, plan_runs
from atoll.methods._factory import LOCAL_OPTIMISERS, make

PAPERS = ("dcpfl", "pfedes", "feddw", "fedpd", "scd")


def full(paper: str) -> Iterator[tuple[str, PlannedRun]]:
    """Every planned run of a paper at full scale, one seed each, with the name of its recipe."""
    for name in papers.list_recipes():
        if name.startswith(f"{paper}/"):
            recipe = papers.read_recipe(name)
            for planned in plan_runs(recipe, recipe.scale("full"), Path("runs")):
                if planned.config.seed == 0:
                    yield name, planned


def local_optimisers(config: Config) -> dict[str, object]:
    """The optimisers of a client's own training that a run would use, by field."""
    method = make(config.method, config.settings, config.terms, config.optimiser_options)
    return {name: getattr(method, name) for name in LOCAL_OPTIMISERS if hasattr(method, name)}


def test_dcpfl_runs_100_rounds_on_cifar10_and_500_on_cifar100() -> None:
    for name, (_, _, config) in full("dcpfl"):
        assert config.rounds == {"cifar10": 100, "cifar100": 500}[config.data], name
        assert config.transform == "liping_aug", name
        if name != "dcpfl/grid":  # which varies both
            assert (config.batch_size, config.epochs) == (64, 10), name
        assert config.partition.startswith("pathological:"), name
        assert config.models in (("cnn1",), ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5")), name


@pytest.mark.parametrize("paper", ["dcpfl", "pfedes"])
def test_temperature_of_fedkd_falls_until_the_end_of_the_run(paper: str) -> None:
    found = [planned.config for _, planned in full(paper) if planned.method == "FedKD"]

    assert found
    assert all(config.settings["rounds_to_end"] == config.rounds for config in found)


def test_pfedes_splits_8_to_2_and_trains_proxies_in_the_same_batches() -> None:
    for name, (_, method, config) in full("pfedes"):
        assert (config.split, config.transform, config.rounds) == ("client_82", "liping_aug", 500), name
        optimisers = local_optimisers(config)
        assert {optim.batch_size for optim in optimisers.values()} == {64}, (name, method)  # type: ignore[attr-defined]


def test_pfedes_counts_bytes_both_ways_to_the_target() -> None:
    assert papers.read_recipe("pfedes/figure3").measures["bytes both ways"] == "=target.reached.bytes.both"


def test_feddw_augments_as_its_code_and_trains_by_adam() -> None:
    for name, (_, _, config) in full("feddw"):
        if name not in ("feddw/figure4", "feddw/figure5"):  # single networks, of which the code says nothing
            assert config.transform == "feddw", name
        assert config.optimiser == "adam", name
        assert config.batch_size == (512 if config.data == "imdb" else 128), name


def test_feddw_measures_training_time_alone_and_targets_of_the_global_model() -> None:
    assert papers.read_recipe("feddw/table3").measures == {"seconds": "=clock.local"}
    assert {planned.config.target_of for name, planned in full("feddw") if name == "feddw/figure7"} == {"generic"}


def test_fedpd_trains_without_decay_and_clipping_and_averages_the_last_ten_rounds() -> None:
    for name, (_, method, config) in full("fedpd"):
        if name == "fedpd/figure2":  # who holds what; nothing is compared
            continue
        optim = local_optimisers(config)["optim"]
        assert (optim.weight_decay, optim.clip) == (0, 0), (name, method)  # type: ignore[attr-defined]
        assert (config.rounds, config.epochs, config.public) == (200, 5, 1000), name
        assert papers.read_recipe(name).measures["accuracy"] == "personal.last10", name


def test_fedpd_gives_one_width_to_methods_that_compare_features_on_cifar() -> None:
    widths = {
        (planned.method, planned.config.width)
        for _, planned in full("fedpd")
        if planned.config.models[0] == "lenet" and planned.method in ("FedProto", "FedHKD", "FedMD", "FedPD")
    }

    assert widths == {("FedProto", 84), ("FedHKD", 84), ("FedMD", None), ("FedPD", None)}


def test_scd_trains_without_decay_and_clipping_at_the_rates_of_its_code() -> None:
    for name, (_, method, config) in full("scd"):
        for field, optim in local_optimisers(config).items():
            if method != "pFedMe":  # Its inner steps have a rate of their own.
                found = (optim.lr, optim.batch_size, optim.momentum, optim.weight_decay, optim.clip)  # type: ignore[attr-defined]
                assert found == (0.03, 8, 0.5, 0, 0) or method in ("FedDyn",), (name, method, field)


ORIGINAL = {  # what the papers and codes of the baselines say, by recipes of another paper
    "scd": {
        "FedProx": {"mu": 1},
        "Ditto": {"lam": 1},
        "pFedMe": {"lam": 15, "steps": 5, "beta": 1},
    },
    "fedpd": {
        "FedMD": {"first_epochs": 25},
        "FedDF": {"steps": 10_000, "patience": 1000, "check_every": 100},
        "KT-pFL": {"temperature": 10, "projection": "softmax"},
    },
}


@pytest.mark.parametrize("paper", sorted(ORIGINAL))
def test_baselines_have_their_original_settings_by_name(paper: str) -> None:
    """Named in the recipe, so that another default of Atoll does not change what full means."""
    found = set()
    for name, (_, method, config) in full(paper):
        if known := ORIGINAL[paper].get(method.split(",")[0].removesuffix(" w/ WF")):
            found.add(method)
            assert config.settings.items() >= known.items(), (name, method)

    assert found >= ORIGINAL[paper].keys()


def test_inner_steps_of_pfedme_have_the_rate_of_its_authors() -> None:
    rates = {local_optimisers(p.config)["personal_optim"].lr for _, p in full("scd") if p.method == "pFedMe"}  # type: ignore[attr-defined]

    assert rates == {0.01}


def test_scd_takes_the_received_model_as_personal_model_of_generic_methods() -> None:
    for item in ("table1", "table2", "table3"):
        methods = papers.read_recipe(f"scd/{item}").methods
        for method in ("FedAvg", "FedProx", "FedDyn", "FedGen", "FedAvgM"):
            if method in methods:
                assert methods[method].measures["personal"] == "personal_pre.metrics.best.weighted"


def test_scd_measures_overlap_with_communication_as_long_as_personal_training() -> None:
    for name, (_, _, config) in full("scd"):
        if name == "scd/table4":
            assert (config.clock, config.target_of) == ("communication=equal_to_personal", "weighted")
            assert config.wait_free
        if name == "scd/figure2":
            assert config.rounds >= 2  # One round has no waiting.


def test_data_sets_of_all_recipes_are_known() -> None:
    names = {planned.config.data.partition("@")[0] for paper in PAPERS for _, planned in full(paper)}

    assert names <= KNOWN.keys()
