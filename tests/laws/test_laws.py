"""What every method must obey: one test for each law, over the whole registry."""

import json
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
from support.paths import TESTS
from support.small_runs import PERSONAL, gap_params, made_with, run, same_models, setup

from atoll.analysis.laws import NotApplicable, Trial, execution, messages, purity
from atoll.analysis.laws.messages import Exchanged
from atoll.core.limits import why_star
from atoll.core.method import traits_of
from atoll.core.payloads import equal
from atoll.core.serialization import schema
from atoll.core.traits import Need
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.methods import _registry
from benchmarks.digests import PUBLIC

METHODS = sorted(_registry.methods())
SPECS = METHODS + [f"{name}:{variant}" for name in METHODS for variant in _registry.method(name).traits.variants]
VECTORISABLE = [name for name in SPECS if traits_of(_registry.method(name.partition(":")[0])).vmap is not False]
WIRE = TESTS / "wire"


@cache
def trial(name: str) -> Trial:
    return Trial(partial(setup, name))


# -- law 1: the backend, the order of clients and where states are kept do not matter ---------------------------------


@pytest.mark.promise("Repeatability", "vmap agrees with the loop up to rounding in every exchange, for every method.")
@pytest.mark.parametrize("name", VECTORISABLE)
def test_vmap_backend_agrees_with_loop_up_to_rounding(name: str) -> None:
    execution.vmap_equals_loop(trial(name))


@pytest.mark.promise("Repeatability", "The order of clients in a round changes no bit, for every method.")
@pytest.mark.parametrize("name", METHODS)
def test_order_of_clients_in_a_round_changes_no_bit(name: str) -> None:
    execution.order_changes_nothing(trial(name))


@pytest.mark.parametrize("name", METHODS)
def test_on_the_complete_graph_every_client_has_the_state_of_the_server(name: str) -> None:
    if why_star(trial(name).method):
        with pytest.raises(NotApplicable):
            execution.complete_graph_equals_star(trial(name))
    else:
        execution.complete_graph_equals_star(trial(name))


@pytest.mark.parametrize("name", METHODS)
def test_disk_store_with_cache_for_one_client_gives_same_states(name: str) -> None:
    execution.store_changes_nothing(trial(name))


@pytest.mark.parametrize("name", METHODS)
def test_process_backend_gives_same_digest_as_loop(name: str) -> None:
    execution.processes_equal_loop(trial(name))


@pytest.mark.parametrize("length", [{"epochs": 0.5}, {"epochs": 1.5}, {"epochs": None, "steps": 5}], ids=str)
def test_length_of_training_is_the_same_on_every_backend(length: dict[str, Any]) -> None:
    execution.vmap_equals_loop(Trial(partial(setup, "fedavg", **length)))
    alone = run("fedavg", **length).summary["digest"]
    assert run("fedavg", backend="processes", workers=2, **length).summary["digest"] == alone
    assert alone != run("fedavg").summary["digest"]


# -- law 2: a run through checkpoints equals a run without ------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_resume_from_checkpoint_gives_same_digest(name: str) -> None:
    execution.resume_equals_whole_run(trial(name))


# -- law 3: payloads survive the wire, and have the declared classes --------------------------------------------------


@cache
def wire_trial(name: str) -> Trial:
    """With all rows of digits, in few steps: the golden files have the number of classes that the client holds."""
    return Trial(partial(setup, name, rows=None, batch_size=64))


@pytest.mark.parametrize("name", SPECS)
def test_payloads_have_the_declared_classes_and_are_restored_bit_for_bit(name: str) -> None:
    messages.payloads_survive_the_wire(wire_trial(name))


# -- law 4: inputs are left alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_method_functions_do_not_modify_their_inputs(name: str) -> None:
    purity.inputs_stay_unchanged(trial(name))


@pytest.mark.parametrize("name", METHODS)
def test_run_neither_reads_nor_advances_the_global_generator(name: str) -> None:
    purity.randomness_comes_from_keys(trial(name))


# -- law 5: degenerate hyper-parameters give the simpler method, bit for bit ------------------------------------------


def test_fedprox_with_mu_zero_equals_fedavg() -> None:
    assert equal(made_with("fedprox", mu=0.0).server, run("fedavg").server)


def test_feddw_with_mu_zero_equals_fedavg_with_bias_free_head() -> None:
    dw = made_with("feddw", mu=0.0)
    plain = run_experiment(replace(setup("fedavg"), pool=setup("feddw").pool))
    assert gap_params(dw.server.params, plain.server.params) == 0


@pytest.mark.parametrize(
    "host", [name for name in METHODS if hasattr(_registry.method(name), "regularisers") and name != "feddw"]
)
def test_dw_regulariser_of_weight_zero_leaves_the_method_unchanged(host: str) -> None:
    with_dw = setup(host, terms=("dw:mu=0",))
    plain = run_experiment(replace(setup(host), pool=with_dw.pool))
    assert gap_params(run_experiment(with_dw).server.params, plain.server.params) == 0


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("moon", {"mu": 0.0}),
        ("feduv", {"lam_v": 0.0, "lam_u": 0.0}),
        ("feddistill", {"gamma": 0.0}),
        ("scd", {"lam_g": 0.0}),
    ],
)
def test_method_with_loss_weight_zero_equals_fedavg(name: str, off: dict[str, float]) -> None:
    assert gap_params(made_with(name, **off).server.params, run("fedavg").server.params) == 0


def test_scd_with_lam_p_zero_has_local_personal_models() -> None:
    apart = made_with("scd", lam_p=0.0, **PERSONAL)
    assert same_models(apart, run("local"))
    assert same_models(made_with("scd:no-both", **PERSONAL), apart)


def test_fedproto_with_lam_zero_equals_local() -> None:
    assert same_models(made_with("fedproto", lam=0.0), run("local"))


def test_ditto_without_proximal_term_has_local_personal_models_and_fedavg_global_model() -> None:
    assert same_models(made_with("ditto", lam=0.0, **PERSONAL), run("local"))
    assert equal(run("ditto").server, run("fedavg").server)


def test_dcpfl_without_calibrations_equals_fedgh_with_per_client_means() -> None:
    bare = made_with("dcpfl", lam=0.0, virtual=0)
    fedgh = made_with("fedgh", server_mode="per_client_mean")
    assert gap_params(bare.server.head, fedgh.server.head) == 0
    assert same_models(bare, fedgh)


def test_fedavg_equals_local_with_a_single_client() -> None:
    alone = {"clients": 1, "partition": "iid"}
    assert same_models(run("fedavg", **alone), run("local", **alone))


def test_pfedes_with_mu_zero_equals_local() -> None:
    assert same_models(made_with("pfedes", mu=0.0), run("local"))


def test_fedpd_with_lam_zero_equals_local() -> None:
    assert same_models(made_with("fedpd", lam=0.0), run("local", public=PUBLIC))


# -- law 7: what leaves a client is a reviewed file, in which every field has a role ----------------------------------


@cache
def exchanged(name: str) -> Exchanged:
    return messages.second_round(wire_trial(name).setup())


@pytest.mark.parametrize("name", [n for n in METHODS if n != "local"])  # local uploads nothing
def test_every_field_of_an_upload_has_a_role(name: str) -> None:
    messages.uploads_declare_roles(trial(name))


@pytest.mark.parametrize("name", SPECS)
def test_messages_have_the_schema_of_the_golden_file(name: str) -> None:
    exchanges = [{"down": schema(down), "up": schema(up)} for down, up in exchanged(name).messages]
    found = exchanges[0] if len(exchanges) == 1 else exchanges
    golden = WIRE / f"{name.replace(':', '-')}.json"
    assert golden.exists(), f"{golden.name} is missing; it should hold {json.dumps(found)}"
    assert found == json.loads(golden.read_text())


# -- law 8: a broken upload leaves no trace ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in METHODS if n != "local"])  # local uploads nothing that could break
def test_invalid_upload_changes_nothing_but_the_absence_of_its_client(name: str) -> None:
    messages.broken_uploads_leave_no_trace(trial(name))


# -- heterogeneous models: a method works, or refuses with the reason -------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_heterogeneous_models_run_or_are_refused_with_the_reason(name: str) -> None:
    needs = traits_of(_registry.method(name)).needs
    more = "&norm=true" if Need.BATCH_NORM in needs else ""
    mixed = {"models": (f"mlp:hidden=32{more}", f"mlp:hidden=64{more}"), "width": 24}
    if Need.SAME_ARCHITECTURE in needs:
        with pytest.raises(AtollError, match="one architecture"):
            setup(name, **mixed)
    else:
        assert run(name, **mixed).summary["status"] == "finished"
        if name in VECTORISABLE:
            execution.vmap_equals_loop(Trial(partial(setup, name, **mixed)))
