"""Start Flower's SuperLink with a control interface that asks for the server's own secret.

``python -m atoll.deploy.server.superlink SECRET_FILE OPTIONS...`` takes the options of ``flower-superlink``. Without
the secret, any account of the machine that reaches the port on the loopback could start runs and register nodes.
"""

import hmac
import sys
from pathlib import Path

from ..flower_adapter.superlink import run_superlink


def main(secret_file: Path, arguments: list[str]) -> None:
    """Run the SuperLink until a signal arrives.

    Args:
        secret_file: file with the token of the control interface, readable by this account alone.
        arguments: options of ``flower-superlink``.
    """
    secret = secret_file.read_text()
    run_superlink(arguments, lambda token: hmac.compare_digest(token.encode(), secret.encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
