"""Text: reviews of five shops with a bidirectional LSTM, made up here or the real ones of IMDB.

python examples/text.py
python examples/text.py --data imdb    # 84 MB to download, and minutes to hours on a processor
"""

import argparse
import csv
import random
import tempfile
from pathlib import Path

import atoll

PRAISE, BLAME = ["lovely", "great", "fresh", "quick", "kind"], ["dull", "broken", "late", "rude", "stale"]
PLAIN = ["the", "shop", "and", "service", "was", "my", "order", "on", "monday", "again"]


def reviews(path: Path, rng: random.Random) -> None:
    """A hundred short reviews with their shop and a label; some shops please more than others."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "owner", "label"])
        for i in range(100):
            good = rng.random() < (0.3, 0.4, 0.5, 0.6, 0.7)[i % 5]
            words = rng.sample(PLAIN, 4) + rng.sample(PRAISE if good else BLAME, 3)
            rng.shuffle(words)
            writer.writerow([" ".join(words), f"shop {i % 5}", "good" if good else "bad"])


def main(data: str) -> None:
    if data == "imdb":
        print(atoll.run("fedavg", "imdb", "bilstm", clients=10, partition="dirichlet:0.5", optimiser="adam", rows=2000))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "reviews.csv")
        reviews(file, random.Random(0))
        small = "bilstm:embedding=8&hidden=8&vocabulary=40&masked_mean=true"  # the real one: plain bilstm
        # The same on the command line: atoll run fedavg --data reviews.csv --partition natural --models '...'
        result = atoll.run(
            "fedavg", str(file), small, partition="natural", rounds=3, epochs=4, optimiser="adam", lr=0.03, batch_size=8
        )
        print(result)
        for row in result.clients[-5:]:
            print(f"{row['client']} {row['accuracy']:.0%}")


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--data", choices=("made up", "imdb"), default="made up")
    main(options.parse_args().data)
