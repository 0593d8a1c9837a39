"""Where arithmetic runs. There is no CUDA device here: what is tested is who decides, and what is told."""

import pytest
import torch

from atoll.config import Config
from atoll.core.payloads import Nothing, Params, about, payload
from atoll.core.serialization import decode, encode
from atoll.engine.execution import resolve_device
from atoll.engine.setup import build_setup
from atoll.errors import AtollError


@payload
class Weights:
    params: Params = about("some")


@pytest.mark.parametrize(
    ("asked", "backend", "there", "taken"),
    [
        ("auto", "auto", False, "cpu"),
        ("auto", "auto", True, "cuda"),
        ("auto", "processes", True, "cpu"),
        ("cpu", "auto", True, "cpu"),
        ("cuda", "loop", True, "cuda"),
    ],
)
def test_device_follows_option_backend_and_available_hardware(
    asked: str, backend: str, there: bool, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert resolve_device(Config(device=asked, backend=backend)) == taken


def test_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AtollError, match="finds no CUDA device here"):
        build_setup(Config(device="cuda"))


def test_worker_processes_are_refused_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(AtollError, match="runs on the CPU only"):
        build_setup(Config(device="cuda", backend="processes"))


def test_automatic_device_is_resolved_in_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert build_setup(Config()).config.device == "cpu"


def test_automatic_device_has_the_identity_of_cpu() -> None:
    assert Config(device="auto").identity() == Config(device="cpu").identity() != Config(device="cuda").identity()


def test_decoded_tensors_are_on_the_default_device() -> None:
    data = encode(Weights({"w": torch.ones(2)}))
    with torch.device("meta"):
        assert decode(Weights, data).params["w"].is_meta
    assert torch.equal(decode(Weights, data).params["w"], torch.ones(2))
    assert decode(Nothing, encode(Nothing())) is not None
