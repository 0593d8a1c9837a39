"""pfl: federated averaging on its simulated backend, weighted by rows, without evaluation."""

from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from shared import load, measure, rows_of
from torch import Tensor, nn
from torch_net import network

work = load()
rng = np.random.default_rng(0)


class Net(nn.Module):
    """The network with the two functions that pfl calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network(work)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        return F.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict:
        return {"loss": Weighted(float(F.cross_entropy(self.layers(x), y, reduction="sum")), len(y))}


def make_user(client: str) -> Dataset:
    """Return a user's rows in a new order: pfl keeps the order that it is given."""
    x, y = rows_of(work, int(client))
    order = rng.permutation(len(y))
    return Dataset((torch.from_numpy(x[order]), torch.from_numpy(y[order])), user_id=client)


users = [str(i) for i in range(work.clients)]
net = Net()
model = PyTorchModel(
    net,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
)
training = FederatedDataset(make_user, get_user_sampler("minimize_reuse", users))
backend = SimulatedBackend(training_data=training, val_data=None, postprocessors=[WeightByDatapoints()])
params = NNAlgorithmParams(
    central_num_iterations=work.rounds,
    evaluation_frequency=10 * work.rounds,
    train_cohort_size=work.sampled,
    val_cohort_size=0,
)
training_params = NNTrainHyperParams(
    local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch, local_max_grad_norm=None
)


def rounds() -> list[np.ndarray]:
    FederatedAveraging().run(
        algorithm_params=params, backend=backend, model=model, model_train_params=training_params, callbacks=[]
    )
    return [v.detach().numpy() for v in net.parameters()]


measure(rounds, version("pfl"))
