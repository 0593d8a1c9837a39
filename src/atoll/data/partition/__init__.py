"""Partition the rows of a data set among clients.

    iid                       equal random parts
    pathological:K            K classes for each client, and the same number of owners for each class
    pathological:K:code       the same as in published code, where a client may draw one class twice
    dirichlet:BETA            each class is divided by one Dirichlet draw over the clients
    dirichlet:BETA:capped     the same, but full clients are skipped and every client has at least 10 rows
    dirichlet:BETA:masked=P   a client takes part in a class with probability P
    dirichlet:BETA:client     each client draws its own class distribution
    natural                   the owners that the data name
    file:PATH                 an exported partition

Every partition terminates: random draws are repeated a limited number of times, then corrected, and a note reports the
correction. Every client has at least two rows.
"""
