"""FedKD. Wu et al., Nature Communications 2022. https://arxiv.org/abs/2108.13323

client:  on every batch, in one step of both models;  S = CE(t_k) + CE(s)
         t_k, the mentor:  CE(t_k) + [KL(p_s || p_t) + MSE(z_t, W_k z_s)] / S, from where it stopped
         s_k, the mentee:  CE(s) + [KL(p_t || p_s) + MSE(z_t, W_k z_s)] / S, over s and W_k, from s_t
         up: svd(s_k - s_t)
server:  s_{t+1} = s_t + svd(sum_k n_k svd(s_k - s_t) / sum_k n_k), over the clients of the round;   down: that change
svd(A):  the first K singular values and vectors, of which sigma_1^2 + ... + sigma_K^2 >= T(t) sum_i sigma_i^2;
         T(t) = t_start + (t_end - t_start) t / rounds_to_end;   convolutions as matrices [out, in * height * width]

The change goes down only to who took part in the round before and so has s_t: all others get s_{t+1} whole. What K
factors, K (m + n + 1) numbers, would not make smaller travels as it is, and so do vectors and running statistics. S and
the other model's outputs are constants, S at least s_min, without which the weight grows beyond bounds as models fit.
Features are those before the last layer. The released code wipes matrices out that need all their singular values,
sums both losses without constants, averages equally (uniform), and its W is never trained.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregation import mean
from ..core.batch import Step
from ..core.client import Client
from ..core.hyperparams import setting, within
from ..core.losses import cross_entropy, wmean
from ..core.method import Method
from ..core.model import Predictor
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import sub, weights, zeros
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key, uniform
from ..core.replies import with_policy_of
from ..core.task import Reply, Round, Task
from ..core.traits import Need, Traits
from ..typing import ClientId
from ._low_rank import apply_change, compress, decompress
from ._mutual_learning import Update, kl_from_peer, shared_model, train_both

PROJECT = "project"  # Prefix of W_k while it is trained together with the mentee.


@payload
class Server:
    params: Params = about("s_t, the mentee")
    change: Params = about("s_t - s_{t-1}, compressed")
    present: Params = about("a mark for each client that has s_{t-1}: those of the last round")


@payload
class State:
    params: Params = about("t_k, the client's own model, the mentor")
    project: Tensor = about("W_k, from features of the mentee to those of the mentor [d_t, d_s]")
    mentee: Params = about("s as it was received last")


@payload
class Mentee:
    params: Params = about("s_t, for a client that does not have s_{t-1}")
    change: Params = about("s_t - s_{t-1}, compressed, for one that does")
    buffers: Params = about("running statistics of s_t, with the change")
    threshold: float = about("T(t), the share of the energy that compression keeps")


@payload
class Change:
    change: Params = about("s_k - s_t, compressed", role=Role.CHANGE, of="params")
    buffers: Params = about("running statistics of s_k", role=Role.OTHER)
    n: Tensor = about("n_k, the number of training samples", role=Role.WEIGHT, count=True)


@dataclass(frozen=True)
class FedKD(Method[Server, State, Mentee, Change]):
    optim: Optimiser = field(default=SGD(), metadata={"about": "local training, of both models"})
    uniform: bool = setting(False, "average changes equally, not by samples", "chosen here; true in public code")
    kl_weight: float = setting(1.0, "weight of the divergence of predictions", "paper")
    hidden_weight: float = setting(1.0, "weight of the distance of features", "paper")
    s_min: float = setting(0.01, "smallest S that is divided by", "chosen here; the paper sets none")
    t_start: float = setting(0.95, "share of the energy that is kept at first", "public code")
    t_end: float = setting(0.98, "share of the energy that is kept in the end", "public code")
    rounds_to_end: int = setting(100, "rounds until then; the paper means all rounds of the run", "chosen here")

    traits: ClassVar[Traits] = Traits(
        family="mutual",
        needs=frozenset({Need.CLASSES, Need.SHARED_MODEL}),
        vmap=False,
        varying_bytes=True,
        why_uploads="clients send factors, and the sum of factors is not that of what they stand for",
        guards=("params",),
    )

    def __post_init__(self) -> None:
        within(self, 0, "kl_weight", "hidden_weight")
        within(self, 1e-6, "s_min")
        within(self, 0, "t_start", "t_end", high=1)
        within(self, 1, "rounds_to_end")

    # -- client -------------------------------------------------------------------------------------------------------

    def init_client(self, client: Client, k: Key) -> State:
        rows, columns = client.model.feature_dim, shared_model(client).feature_dim
        project = (2 * uniform(k, rows, columns) - 1) / columns**0.5  # Initialised as torch initialises linear layers.
        return State(client.model.init(), project, {})

    def client_update(self, down: Mentee, state: State, client: Client, r: Round, k: Key) -> tuple[Change, State]:
        start = down.params or apply_change(state.mentee, down.change, down.buffers)
        mentor, mentee = train_both(self.optim, self.losses, state.params, start | {PROJECT: state.project}, client, k)
        project = mentee.pop(PROJECT)
        change = compress(sub(weights(mentee), start), down.threshold)
        return Change(change, _buffers(mentee), client.n), State(mentor, project, start)

    def losses(self, mentor: Step, mentee: Step) -> tuple[Tensor, Tensor]:
        of_mentor, of_mentee = (cross_entropy(step.logits, step.batch) for step in (mentor, mentee))
        s = (of_mentor + of_mentee).detach().clamp(min=self.s_min)
        if self.kl_weight:
            of_mentor = of_mentor + self.kl_weight * kl_from_peer(mentor, mentee) / s
            of_mentee = of_mentee + self.kl_weight * kl_from_peer(mentee, mentor) / s
        if self.hidden_weight:
            guess = mentee.features @ mentee.params[PROJECT].T
            of_mentor = of_mentor + self.hidden_weight * _mse(mentor.features, guess.detach(), mentor.batch.w) / s
            of_mentee = of_mentee + self.hidden_weight * _mse(mentor.features.detach(), guess, mentor.batch.w) / s
        return of_mentor, of_mentee

    def personal_params(self, down: Mentee, up: Change | None, state: State, client: Client) -> Params:
        return state.params

    # -- server -------------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, k: Key) -> Server:
        return Server(shared_model(task).init(), {}, {})

    def broadcast(self, server: Server, to: ClientId, task: Task, r: Round, k: Key) -> Mentee:
        if to in server.present:
            return Mentee({}, server.change, _buffers(server.params), self.threshold(r))
        return Mentee(server.params, {}, {}, self.threshold(r))

    def aggregate(self, server: Server, replies: Iterable[Reply[Change]], task: Task, r: Round, k: Key) -> Server:
        present: Params = {}

        def updates() -> Iterator[Update]:
            for sender, up in replies:
                present[sender] = torch.tensor(True)
                yield Update(decompress(up.change, server.params) | up.buffers, up.n)

        none = zeros(weights(server.params)) | _buffers(server.params)
        average = mean(with_policy_of(replies, updates()), "params", weight=None if self.uniform else "n", around=none)
        change = compress(weights(average), self.threshold(r))
        # Clients add the change that they receive, so the server adds the same one.
        return Server(apply_change(server.params, change, _buffers(average)), change, present)

    def threshold(self, r: Round) -> float:
        return self.t_start + (self.t_end - self.t_start) * min(r.t / self.rounds_to_end, 1.0)

    def generic_predictor(self, server: Server, task: Task) -> Predictor:
        return lambda x: shared_model(task)(server.params, x)

    def reduces_to(self) -> str | None:
        if self.kl_weight == 0 and self.hidden_weight == 0:
            return "With kl_weight = 0 and hidden_weight = 0 the personal models are trained alone, as by Local."
        return None


def _mse(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return wmean((a - b).square().mean(1), w)


def _buffers(params: Params) -> Params:
    moving = weights(params)
    return {name: v for name, v in params.items() if name not in moving}
