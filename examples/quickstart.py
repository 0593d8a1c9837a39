"""Compare three methods on ten clients with different data, then use one client's personal model.

python examples/quickstart.py
"""

import atoll

SETTING = {"data": "digits", "clients": 10, "partition": "pathological:3", "rounds": 10}

results = {method: atoll.run(method, **SETTING) for method in ("local", "fedavg", "fedproto")}
for method, result in results.items():
    personal = result.summary["personal"]
    print(f"{method:9} personal accuracy {personal['best_by_val']:.1%}, worst 10 % {personal['worst_decile']:.1%}")

# A result holds the models: here client 3's own, asked about the first rows of its own test set.
result = results["fedproto"]
model = result.personal("3")
test = result.pool.test[result.pool.position("3")]
print("client 3 predicts", model(test.x[:8]).argmax(1).tolist(), "where the labels are", test.y[:8].tolist())
