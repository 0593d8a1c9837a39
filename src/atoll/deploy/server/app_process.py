"""Run the server app of one task, whose token arrives by the standard input.

``python -m atoll.deploy.server.app_process OPTIONS...`` takes the options of ``flwr-serverapp`` but for the token.
"""

import os
import sys
import threading
import time

from ..flower_adapter.tasks import run_server_app

GRACE = 20.0  # seconds to end in order; below those for which the next app of the run waits for its directory
LOOK = 0.5  # seconds between two looks at the parent


def end_with(parent: int, grace: float = GRACE) -> None:
    """Return once the parent has ended, and this process had time to end in order; then end it.

    Flower asks its app to end by SIGINT. Python handles signals in the main thread alone, so an app whose main thread
    waits for pushes to a server that is gone would stay, and keep the run directory locked.
    """
    while os.getppid() == parent:
        time.sleep(LOOK)
    time.sleep(grace)
    os._exit(1)


if __name__ == "__main__":
    executor = int(sys.argv[sys.argv.index("--parent-pid") + 1])
    threading.Thread(target=end_with, args=(executor,), daemon=True).start()
    run_server_app(sys.argv[1:], sys.stdin.readline().strip())
