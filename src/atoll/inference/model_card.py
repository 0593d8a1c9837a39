"""Write the model card of an exported model: what it is, what it reads, how well it did, and for whom it is not."""

from ..clients.pool import ClientPool
from ..config import Config
from ..typing import ClientId
from ..utils.parsing import Json


def model_card(manifest: Json, config: Config, pool: ClientPool, client: ClientId, score: str | None) -> str:
    """Return a model card as Markdown.

    Args:
        manifest: the manifest of the exported file.
        config: configuration of the run.
        pool: the clients of the run.
        client: the client whose model it is.
        score: the client's test score of that model, with its unit; None if it is not known.
    """
    at = pool.position(client)
    sizes = {part: rows.size(at) for part, rows in (("train", pool.train), ("val", pool.val), ("test", pool.test))}
    names = manifest.get("classes") or manifest.get("names") or []
    reads = manifest["input"]
    privacy = f"Differential privacy of uploads: {config.dp}." if config.dp else "No differential privacy was used."
    return f"""# Model of client {client}

## What it is

A personalised model ({manifest["architecture"]}) of one client of a federation of {len(pool.ids)}, trained by
{manifest["method"]} up to round {manifest["round"]} with Atoll {manifest["atoll"]}. File: `{manifest["file"]}`, SHA-256
`{manifest["sha256"]}`.

## What it reads and returns

- Reads {reads["rows"]} samples: {reads["kind"]} data of shape {reads["shape"]}, type {reads["type"]}.
- Returns {manifest["output"]}: {", ".join(map(str, names))}.

## Data

{config.data}; the client had {sizes["train"]} samples to train on, {sizes["val"]} to validate and {sizes["test"]} to
test. Seed {config.seed}, partition {config.partition}, split {config.split}.

## How well it did

{f"Test score on the client's own {sizes['test']} test samples: {score}." if score else "The test score is not known."}
The file was checked against the model on {manifest["checked"]["rows"]} samples.

## Limits

- The model is fitted to this client. On samples of other clients it may do much worse.
- The score above comes from {sizes["test"]} samples; a score of few samples is uncertain (`atoll scores` gives
  intervals).
- {privacy}
- Intended use, people concerned, and who answers for decisions: to be written by the owner.
"""
