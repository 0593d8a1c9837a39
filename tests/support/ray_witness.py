"""A method that tells where it ran, and can be made to hang on, or to die with, one node of a Ray cluster."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.core.prng import Key
from atoll.core.task import Round
from atoll.methods.ditto import Ditto
from atoll.methods.fedavg import Global, Update
from atoll.methods.local import State


@dataclass(frozen=True)
class Witness(Ditto):
    """Ditto that leaves a file in ``folder``, named after the parent of its process: the keeper of a node."""

    folder: str = ""
    hang: int = -1  # under this keeper, wait for the end
    deadly: int = 0  # so many times, end the process before the upload
    late: bool = False  # or after it
    home: int = field(default_factory=os.getpid)  # the process that made it, where it is Ditto and nothing else

    def client_update(self, down: Global, state: State, client: Any, r: Round, k: Key) -> tuple[Update, State]:
        if os.getpid() != self.home:
            Path(self.folder, str(os.getppid())).touch()
        while os.getppid() == self.hang:
            time.sleep(0.05)
        if not self.late:
            self._die()
        return super().client_update(down, state, client, r, k)

    def after_upload(self, down: Any, up: Any, state: Any, client: Any, r: Round, k: Any) -> Any:
        if self.late:
            self._die()
        return super().after_upload(down, up, state, client, r, k)

    def _die(self) -> None:
        for death in range(self.deadly if os.getpid() != self.home else 0):
            try:
                Path(self.folder, f"death-{death}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
