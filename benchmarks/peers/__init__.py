"""FedAvg beside other frameworks, on the same tensors: ``make bench-peers``.

Every peer is installed by pip into a virtual environment of its own, below build/peers. Atoll divides and prepares the
data of four works and writes tensors, sizes and first weights to a file, which every contender reads:

W1      digits, 20 clients, all of them in each of 20 rounds, an MLP 64-32-10, batches of 10
W2      6,000 rows of Fashion-MNIST, 10 clients, 5 rounds, 5x5 convolutions (16, 32), a layer of 128, batches of 32
W3      digits drawn with replacement and disturbed, 1,000 clients with 23 rows, 10 of them in each of 100 rounds, MLP
N10000  the same with 10,000 clients

Plain SGD with rate 0.05, one epoch, a mean weighted by rows where the peer has one. A turn runs all contenders once,
each in a new process on one core with one thread; the first turn does not count. Figures are processor seconds of all
processes from just before the first round to just after the last, without imports. The time of Atoll includes the
evaluation of every client's personal model; that of the peers is without evaluation. Three loops in torch run beside
them, without any framework: plain, tuned by hand client by client, and (for the MLP) with all clients batched by hand.
Equal work shows in the accuracy of the last global model on all test rows.
"""
