"""What ends a process that takes calls."""

import asyncio


class Stopping:
    """Two wishes: to end in order, and to end at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Take no more calls, let those that run end, and end."""
        self.hurry = asyncio.Event()
        """Wait for nothing."""

    def ask(self) -> None:
        """Asks for an end in order, and when asked again for one at once."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    def ask_at_once(self) -> None:
        """Asks for an end without waiting for anything."""
        self.stop.set()
        self.hurry.set()
