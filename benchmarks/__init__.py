"""What Atoll costs, measured: ``make bench``, or ``python -m benchmarks [--quick] [--only NAME ...] [--page]``.

Every module with a function ``figures(quick)`` is a benchmark; it returns names and numbers. What is compared is taken
in one interleaved run, so that whatever else the machine does falls on all of it, and ratios are those of medians.
Seconds are the processor's unless a benchmark says otherwise: waiting for other processes is no cost of ours.
"""
