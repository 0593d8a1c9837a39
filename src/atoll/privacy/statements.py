"""Word the guarantees of the privacy mechanisms, and their limits, for summaries and reports."""

SCOPES = {
    "updates": (
        "client level: the data of any one client against none, for everything it sends in all rounds; noise is added "
        "by the client, so the server need not be trusted; all clients weigh the same"
    ),
    "statistics": (
        "release, extractor fixed: any one sample of a client against none, for the statistics that it sends in all "
        "rounds, as if the features had been given beforehand; the extractor is trained on the same samples, so this "
        "is not end to end"
    ),
    "training": (
        "sample level, end to end: any one training sample of a client against none, for all weights that it sends; "
        "the number of its samples is not hidden"
    ),
}
TABLES = (
    "One of these releases are the means and deviations of columns and targets that clients agreed on, with noise on "
    "counts, sums and sums of squares by their declared bounds."
)
NOT_COVERED = "accuracies and other measurements in this record are of private samples and have no noise"
SECURE = "secure source of the operating system: a run with it cannot be repeated"
SEEDED = "not private: seeded noise"
OFF = "No privacy mechanism was on: the server reads uploads as methods make them."
GATED = (
    "The gate acted on {covers}: it prevents exact reconstruction from few samples. It gives no formal guarantee; an "
    "attacker who knows the distribution can still guess membership from means."
)
AT_SITES = "The server asked for no privacy mechanism; sites hold back what their own rules say."
PASSED = "The gate let {passes} pass unchanged, by the role that the method declares for each; roles are not checked."
