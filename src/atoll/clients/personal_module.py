"""Give a personal model to users as a torch module."""

import copy
from itertools import chain

import torch
from torch import Tensor, nn

from ..core.hooks import PredictsOtherwise
from ..core.method import AnyMethod
from ..core.model import Model, Predictor
from ..core.params import BUFFERS
from ..core.payloads import Params
from ..core.problems import Numbers, Problem
from .measured_model import PersonalModel


class PredictorModule(nn.Module):
    """The personal model of a method that does not predict by the client's network alone.

    ``network`` is the client's own network, so that its weights can be read and saved. Calling the module predicts as
    the method does: changed weights of ``network`` do not change the predictions.

    Args:
        network: the client's own network with its trained weights.
        predictor: prepared rows to outputs, as the method predicts.
    """

    def __init__(self, network: nn.Module, predictor: Predictor):
        super().__init__()
        self.network = network
        self._predictor = predictor

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for prepared rows."""
        return self._predictor(x)


def to_module(method: AnyMethod, personal: PersonalModel, model: Model, problem: Problem) -> nn.Module:
    """Return a personal model as a module in evaluation mode, from prepared rows to logits or to numbers.

    Args:
        method: the method, which may predict by more than the client's network.
        personal: the personal model.
        model: the architecture of the client.
        problem: the problem; numbers are in the unit of the data.
    """
    network = trained_network(model, personal.params, problem)
    if isinstance(method, PredictsOtherwise):
        return PredictorModule(network, problem.predictor_in_unit(personal.predictor)).eval()
    return network


def trained_network(model: Model, params: Params, problem: Problem) -> nn.Module:
    """Return a copy of a network with these weights, in evaluation mode; numbers are in the unit of the data."""
    net = copy.deepcopy(model.net).eval()
    trained = {name.removeprefix(BUFFERS): v for name, v in model.network_params(params).items()}
    # By these names, and not by load_state_dict: a tensor that two layers share has one name here.
    with torch.no_grad():
        for name, own in chain(net.named_parameters(), net.named_buffers()):
            own.copy_(trained.get(name, own))  # What adapters leave alone keeps its initial value.
        _fold_unit(net, problem)
    return net


def _fold_unit(net: nn.Module, problem: Problem) -> None:
    """Let a model of numbers return them in the unit of the data: centre + scale * (W h + b) is one linear layer."""
    if not isinstance(problem, Numbers) or not problem.scale:
        return
    head = net.get_submodule("head")
    assert isinstance(head, nn.Linear)
    centre, scale = torch.tensor(problem.centre), torch.tensor(problem.scale)
    head.weight.mul_(scale[:, None])
    head.bias = nn.Parameter(centre if head.bias is None else centre + scale * head.bias)
