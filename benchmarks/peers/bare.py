"""A plain loop in torch: what FedAvg takes without any framework."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from shared import load, measure, rows_of
from torch_net import network

work = load()
net = network(work)
rng = np.random.default_rng(0)
rows = {i: [torch.from_numpy(v) for v in rows_of(work, i)] for i in range(work.clients)}


def rounds() -> list[np.ndarray]:
    for _ in range(work.rounds):
        total = [torch.zeros_like(v) for v in net.parameters()]
        chosen = rng.choice(work.clients, work.sampled, replace=False)
        share = work.sizes[chosen] / work.sizes[chosen].sum()
        for i, weight in zip(chosen, share, strict=True):
            own = copy.deepcopy(net)
            optimiser = torch.optim.SGD(own.parameters(), work.lr)
            x, y = rows[int(i)]
            for batch in torch.randperm(len(y)).split(work.batch):
                optimiser.zero_grad()
                F.cross_entropy(own(x[batch]), y[batch]).backward()
                optimiser.step()
            for sum_, v in zip(total, own.parameters(), strict=True):
                sum_ += float(weight) * v.detach()
        with torch.no_grad():
            for v, new in zip(net.parameters(), total, strict=True):
                v.copy_(new)
    return [v.detach().numpy() for v in net.parameters()]


measure(rounds, torch.__version__)
