"""Export everything that a method is written with, for ``from atoll.core import ...``."""

from ..typing import ClientId
from .batch import Batch, Step
from .class_statistics import Pool, class_means, covariances, draw
from .client import Client
from .contract import check_functions, contract
from .criterion import Criterion
from .exchange import Exchange
from .hyperparams import one_of, setting, within
from .losses import Loss, Term, cross_entropy, wmean
from .method import Method, StateT
from .model import CHUNK, Model, Predictor
from .optim.adam import Adam
from .optim.base import Optimiser, Trained, gradient
from .optim.dpsgd import DPSGD
from .optim.sgd import SGD
from .params import BUFFERS, add, part, sqnorm, sub, weights, zeros
from .payloads import Nothing, Params, Payload, Role, about, nbytes, pack, payload, unpack
from .per_client import PerClient
from .prng import Key, bits, fold, key, normal, permutation, randint, seed_of, uniform
from .problems import Classes, Labels, NextToken, Numbers, Problem
from .regularisers import Regulariser, Regularisers
from .replies import Replies, Reports, with_policy_of
from .task import Reply, Round, Task
from .traits import Need, Reads, Traits
from .tree import stack
from .vmap import is_batched

__all__ = [
    "BUFFERS",
    "CHUNK",
    "DPSGD",
    "SGD",
    "Adam",
    "Batch",
    "Classes",
    "Client",
    "ClientId",
    "Criterion",
    "Exchange",
    "Key",
    "Labels",
    "Loss",
    "Method",
    "Model",
    "Need",
    "NextToken",
    "Nothing",
    "Numbers",
    "Optimiser",
    "Params",
    "Payload",
    "PerClient",
    "Pool",
    "Predictor",
    "Problem",
    "Reads",
    "Regulariser",
    "Regularisers",
    "Replies",
    "Reply",
    "Reports",
    "Role",
    "Round",
    "StateT",
    "Step",
    "Task",
    "Term",
    "Trained",
    "Traits",
    "about",
    "add",
    "bits",
    "check_functions",
    "class_means",
    "contract",
    "covariances",
    "cross_entropy",
    "draw",
    "fold",
    "gradient",
    "is_batched",
    "key",
    "nbytes",
    "normal",
    "one_of",
    "pack",
    "part",
    "payload",
    "permutation",
    "randint",
    "seed_of",
    "setting",
    "sqnorm",
    "stack",
    "sub",
    "uniform",
    "unpack",
    "weights",
    "with_policy_of",
    "within",
    "wmean",
    "zeros",
]
