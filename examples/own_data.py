"""Bring your own data: a table with a column that says who owns each row.

python examples/own_data.py
"""

import csv
import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer

import atoll

# Pretend that tumours of different size were seen in different hospitals.
cancer = load_breast_cancer()
hospitals = ["north", "east", "south", "west"]
ranks = cancer.data[:, 0].argsort().argsort()

with tempfile.TemporaryDirectory() as folder:
    table = Path(folder) / "tumours.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.replace(" ", "_") for name in cancer.feature_names), "owner", "label"])
        for row, label, rank in zip(cancer.data, cancer.target, ranks, strict=True):
            writer.writerow([*row, hospitals[rank * len(hospitals) // len(ranks)], cancer.target_names[label]])

    # Every owner becomes a client. The same on the command line:
    #   atoll compare local fedavg --data tumours.csv --partition natural
    for method in ("local", "fedavg"):
        result = atoll.run(method, data=str(table), partition="natural", rounds=10)
        print(result)

last = {row["client"]: row["accuracy"] for row in result.clients}
for hospital, accuracy in last.items():
    print(f"{hospital:6} {accuracy:.1%}")
