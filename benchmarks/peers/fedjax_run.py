"""fedjax: its federated averaging. The first round, which compiles, is also told apart (``later`` is without it)."""

import json
import sys
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from shared import cpu, load, rows_of

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # fedjax was written for an older jax

import fedjax
from fedjax.algorithms import fed_avg

work = load()
rng = np.random.default_rng(0)
sets = {
    i: fedjax.ClientDataset(
        {"x": np.asarray(rows_of(work, i)[0], np.float32), "y": rows_of(work, i)[1].astype(np.int32)}
    )
    for i in range(work.clients)
}


def logits(params: list, x: jax.Array) -> jax.Array:
    if work.kind == "cnn":
        for kernel, bias in (params[0:2], params[2:4]):
            x = jax.lax.conv(x, kernel, (1, 1), "VALID") + bias[:, None, None]
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        params = params[4:]
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params[0].T + params[1])
    return x @ params[2].T + params[3]


def loss(params: list, batch: dict, key: jax.Array) -> jax.Array:
    found = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.take_along_axis(found, batch["y"][:, None], 1).mean()


algorithm = fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(work.lr),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
)


def main() -> None:
    import resource
    from time import perf_counter

    state = algorithm.init([jnp.asarray(w) for w in work.weights])
    started, begun, first = perf_counter(), cpu(), None
    for t in range(work.rounds):
        chosen = rng.choice(work.clients, work.sampled, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(t), work.sampled)
        state, _ = algorithm.apply(state, [(int(i), sets[int(i)], k) for i, k in zip(chosen, keys, strict=True)])
        jax.block_until_ready(state.params)
        first = cpu() if first is None else first
    spent = {"cpu": cpu() - begun, "wall": perf_counter() - started, "later": cpu() - first}
    np.savez(sys.argv[2], *[np.asarray(w) for w in state.params])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(spent | {"rss_mb": peak, "version": version("fedjax")}))


main()
