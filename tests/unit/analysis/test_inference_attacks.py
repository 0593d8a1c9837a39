"""Attacks on real uploads by a curious server, without a filter, with the gate, and with noise."""

import json

import pytest
import torch
from conftest import Atoll
from support.small_runs import setup

from atoll.analysis.inference_attacks.base import AttackResult, ClassStatistics
from atoll.analysis.inference_attacks.membership import auc
from atoll.analysis.inference_attacks.reconstruction import solve_features
from atoll.analysis.inference_attacks.run import run_attacks
from atoll.clients.tasks import no_filter
from atoll.privacy.policy import Privacy

UNEVEN = {"rows": None, "clients": 6, "partition": "dirichlet:0.3"}  # gives classes of one and of two rows


def figures(name: str, **options: object) -> dict[str, float | None]:
    """Return the success of each attack by name."""
    plain = setup(name, **UNEVEN, **options)
    privacy = Privacy(plain.config, plain.method, plain.pool)
    found: list[AttackResult] = run_attacks(plain, {"": privacy.upload_filter if privacy.on else no_filter})
    return {f.attack.replace(" <= 64", " small").replace(" > 64", " large"): f.found[""] for f in found}


def test_two_rows_follow_from_mean_and_covariance() -> None:
    """(1, 0) and (3, 4) have the mean (2, 2) and the covariance (2, 4)(2, 4)^T / 2 = [[2, 4], [4, 8]]."""
    mean, covariance = torch.tensor([[2.0, 2.0]]), torch.tensor([[[2.0, 4.0], [4.0, 8.0]]])
    found = solve_features(ClassStatistics(None, torch.tensor([True]), mean, covariance), 0, 2)
    assert found is not None
    torch.testing.assert_close(found[found[:, 0].argsort()], torch.tensor([[1.0, 0.0], [3.0, 4.0]]).double())


def test_auc_counts_ordered_pairs_and_half_of_ties() -> None:
    """Of the pairs (3, 1), (3, 2), (2, 1), (2, 2) three are in order and one is a tie: 3.5 / 4."""
    assert auc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0])) == 0.875


def test_gate_prevents_exact_reconstruction_and_membership_inference() -> None:
    """In DC-PFL every class of two rows is reconstructed and every member found; with the gate, none."""
    open_, gated = figures("dcpfl"), figures("dcpfl", min_class_count=10)
    assert open_["reconstruction, 1 sample"] == open_["reconstruction, 2 samples"] == 1
    assert open_["label histogram"] == 1
    assert (open_["membership by covariance, n small"] or 0) > 0.99
    assert gated["reconstruction, 1 sample"] == gated["reconstruction, 2 samples"] == 0
    assert (gated["membership by covariance, n small"] or 1) <= 0.55
    assert (gated["label histogram"] or 0) < 1


def test_covariance_without_small_classes_hides_their_members() -> None:
    assert (figures("dcpfl", min_class_count=10, cov_source="none")["membership by covariance, n small"] or 1) <= 0.55


@pytest.mark.parametrize("name", ["fedproto", "fedgh"])
def test_gate_prevents_reconstruction_of_single_rows_from_prototypes(name: str) -> None:
    assert figures(name)["reconstruction, 1 sample"] == 1
    assert figures(name, min_class_count=2)["reconstruction, 1 sample"] == 0


@pytest.mark.parametrize("name", ["fedavg", "feddw", "scd"])
def test_updates_reveal_inputs_in_spite_of_the_gate(name: str) -> None:
    """The gate filters class statistics, not weights."""
    found = figures(name, min_class_count=10)
    assert (found["inversion, 1 sample"] or 0) > 0.99
    assert (found["inversion, 4 samples"] or 0) > 0.8


def test_noise_prevents_inversion() -> None:
    found = figures("fedavg", dp="8", dp_seed=1)
    assert (found["inversion, 1 sample"] or 0) < 0.5
    assert (found["inversion, 4 samples"] or 0) < 0.5


def test_noise_prevents_membership_inference_by_means() -> None:
    """The gate does not prevent the attack: its AUC stays above 0.55."""
    means = "membership by means, n small"
    assert (figures("fedproto")[means] or 0) > 0.6
    assert (figures("fedproto", min_class_count=10)[means] or 0) > 0.55
    assert (figures("fedproto", dp="1", dp_seed=1)[means] or 1) < 0.55


@pytest.mark.parametrize("name", ["fedpd", "pfedes"])
def test_uploads_without_class_statistics_reveal_no_labels(name: str) -> None:
    found = figures(name)
    assert found["label guess"] == found["blind label guess"]
    if name == "fedpd":
        assert (found["copy of the model"] or 0) > 0.3


def test_command_prints_a_column_for_each_filter(atoll: Atoll) -> None:
    words = ["fedproto", "--clients", 4, "--epochs", 1, "--partition", "dirichlet:0.3"]
    found = json.loads(atoll("attack", *words, "--dp", "1", "--json").stdout)
    by_name = {f["attack"]: f["found"] for f in found}
    assert by_name["label histogram"].keys() == {"open", "gate", "noise"}
    assert by_name["label histogram"]["open"] == 1
    shown = atoll("attack", *words, "--no-gate").stdout
    assert "label histogram" in shown
    assert " gate " not in shown.splitlines()[0]
