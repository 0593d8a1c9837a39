"""The client of the Flower contender: a module of its own, so that Ray's workers can import it and keep its data."""

import os
import sys

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

if len(sys.argv) > 1 and sys.argv[1].endswith(".npz"):  # in the driver; workers inherit its environment
    os.environ["ATOLL_PEERS_WORK"] = sys.argv[1]
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
else:
    sys.argv = [sys.argv[0], os.environ["ATOLL_PEERS_WORK"]]

from shared import load, rows_of
from torch_net import network

work = load()
net = network(work)
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = map(torch.from_numpy, rows_of(work, int(context.node_config["partition-id"])))
    optimiser = torch.optim.SGD(net.parameters(), work.lr)
    for batch in torch.randperm(len(y)).split(work.batch):
        optimiser.zero_grad()
        F.cross_entropy(net(x[batch]), y[batch]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
