"""What every RPC's implementation is handed, and the limits that replies are kept under."""

from dataclasses import dataclass

from turnstore_service.observing import Observer
from turnstore_service.replay.values import Policy
from turnstore_service.storage.mongo.store import MongoStore

REPLY_OVERHEAD_BYTES = 4096
"""Room for the other fields of a reply."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The store, the settings that answers depend on, and who counts."""

    store: MongoStore
    observer: Observer
    default_policy: Policy
    max_reply_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of items that a reply may hold."""
        return self.max_reply_bytes - REPLY_OVERHEAD_BYTES
