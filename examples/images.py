"""Images, and five clients with five different networks: CNN-1 to CNN-5, on the small digits of scikit-learn.

python examples/images.py
"""

import atoll

networks = ["cnn1", "cnn2", "cnn3", "cnn4", "cnn5"]  # dealt out in turn; all have 500 features
federation = {"data": "digits", "models": networks, "clients": 5, "partition": "pathological:4"}

# The same on the command line:
#   atoll compare local fedproto --data digits --models cnn1,cnn2,cnn3,cnn4,cnn5 --clients 5 --partition pathological:4
for method in ("local", "fedproto"):
    result = atoll.run(method, **federation, rows=400, rounds=2, epochs=3, optimiser="adam")
    print(result)

for row in result.clients[-5:]:
    print(f"client {row['client']} with {row['model']} {row['accuracy']:.1%}")
