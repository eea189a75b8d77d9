"""What a manager has learnt, as text: for a checkpoint, and for the other processes of one training run."""

import threading
from abc import ABC, abstractmethod
from functools import cache
from typing import Any

from hpfracc_nn.selection.learning.fingerprint import digest, facts
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.wisdom import Trust, decode, encode
from hpfracc_nn.selection.timing import wall_time


class Sharing(ABC):
    """The part of a manager that hands on what it has learnt, and takes over what others have."""

    lock: threading.RLock
    learner: Learner

    def export_wisdom(self, *, timed_here: bool = False) -> str:
        """Return what is known as text: JSON, as in the wisdom file.

        Args:
            timed_here: Leave out what came from a file or from another process.
        """
        with self.lock:
            known = self.learner.known(timed_here, wall_time())
        return encode(known, _facts()).decode()

    def import_wisdom(self, text: str) -> Trust:
        """Take over what `export_wisdom` returned elsewhere, and let every site reconsider its choice.

        What this process has timed itself stays. Nothing of it is written to the wisdom file: who timed it does that.

        Returns:
            "own": of a machine like this one, as good as if it was timed here. "prior": of another one, and so times to
            start from.

        Raises:
            ValueError: It is no such text, or it is damaged or of another version.
        """
        if not isinstance(text, str):
            raise ValueError(f"import_wisdom(text={text!r}): needs the text that export_wisdom returned.")
        wisdom, machine = decode(text.encode())
        trust: Trust = "own" if digest(machine) == digest(_facts()) else "prior"
        with self.lock:
            self.learner.take_over(wisdom if trust == "own" else wisdom.as_prior(), trust)
            self.reconsider()
        return trust

    def share_trials(self, rank: int = 0, count: int = 1) -> None:
        """Try only every `count`-th kernel from now on, from that of number `rank` on; the others will be told of.

        For processes that run alike and tell each other by `import_wisdom`, such as those of one training run. A kernel
        of which nothing was heard after two such rounds is tried here after all.

        Args:
            rank: Of this process.
            count: Of processes; 1 tries all.

        Raises:
            ValueError: `rank` is not in [0, count), or one of them is no integer.
        """
        if type(rank) is not int or type(count) is not int:
            raise ValueError(f"share_trials(rank={rank!r}, count={count!r}): needs two integers.")
        if not 0 <= rank < count:
            raise ValueError(f"share_trials(rank={rank}, count={count}): needs 0 <= rank < count.")
        with self.lock:
            self.learner.policy.share = rank, count

    @abstractmethod
    def reconsider(self) -> None: ...


@cache  # they take milliseconds, and processes tell each other often
def _facts() -> dict[str, Any]:
    return facts()
