"""What the stages of a worker have sent: they must not change it in place any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import _C
from weft.pipe._workers.values import Versions, have_changed, tensors_in, with_versions

#: What a value is, and the stage or the skip connection that it is for.
Address = tuple[_C.pipe.Sent, int]


class SentValues:
    """Those of one mini-batch. A receiver may read them before or after a change. One thread."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, int], dict[Address, Versions]] = {}
        self._last: dict[int, int] = {}  # the last micro-batch of each stage

    def note(self, stage: int, micro_batch: int, values: Mapping[Address, Any]) -> None:
        """Watches what a stage sends of a micro-batch."""
        self._versions[stage, micro_batch] = {
            address: with_versions(tensors_in(value)) for address, value in values.items()
        }
        self._last[stage] = micro_batch

    def check(self, stage: int, micro_batch: int, keep: bool = False) -> None:
        """Raises RuntimeError if the stage has changed what it sent; watches on if ``keep``."""
        versions = self._versions.get((stage, micro_batch), {})
        if any(map(have_changed, versions.values())):
            raise RuntimeError(
                "the stage changes in place what it has given to another stage: let it give a clone"
            )
        if not keep:
            self._versions.pop((stage, micro_batch), None)

    def check_last(self, stage: int, keep: bool) -> None:
        """As :meth:`check`, of what the stage sent last."""
        if stage in self._last:
            self.check(stage, self._last[stage], keep)

    def check_all(self) -> None:
        """As :meth:`check`, of all; watches on."""
        for stage, micro_batch in self._versions:
            self.check(stage, micro_batch, keep=True)

    def release(self, stage: int, micro_batch: int, address: Address) -> None:
        """Checks, and stops watching a value whose receiver may change it."""
        self.check(stage, micro_batch, keep=True)
        self._versions.get((stage, micro_batch), {}).pop(address, None)
