"""Run the server app of one task, whose token arrives by the standard input.

``python -m atoll.deploy.server.app_process OPTIONS...`` takes the options of ``flwr-serverapp`` but for the token.
"""

import sys

from ..flower_adapter.tasks import run_server_app

if __name__ == "__main__":
    run_server_app(sys.argv[1:], sys.stdin.readline().strip())
