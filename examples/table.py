"""A table: wines of three growers in a CSV file, an MLP for each of three cellars, and a prediction at the end.

python examples/table.py
"""

import csv
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_wine

import atoll
from atoll.inference.models import open_run

wine = load_wine()

with tempfile.TemporaryDirectory() as folder:
    table, run = Path(folder, "wine.csv"), Path(folder, "run")
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.replace("/", "_") for name in wine.feature_names), "grower"])
        writer.writerows([*row, f"grower {label}"] for row, label in zip(wine.data, wine.target, strict=True))

    # The label is the last column; columns are standardised. The same on the command line:
    #   atoll run ditto --data wine.csv --models mlp:hidden=32 --clients 3 --partition dirichlet:1 --out run
    data = f"{table}?label=grower"
    result = atoll.run("ditto", data, "mlp:hidden=32", clients=3, partition="dirichlet:1", rounds=10, out=run)
    print(result)

    # A run directory is enough to predict later. Here: the first test rows of cellar 1, by its own model.
    saved = open_run(run)
    test = saved.pool.test[saved.pool.position("1")]
    with torch.no_grad():
        guesses = saved.personal("1")(test.x[:4]).argmax(1)
    print(
        "cellar 1 says",
        [saved.data.classes[i] for i in guesses],
        "and it is",
        [saved.data.classes[i] for i in test.y[:4]],
    )
