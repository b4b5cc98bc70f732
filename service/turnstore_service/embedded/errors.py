"""What can go wrong with the embedded MongoDB."""


class EmbeddedMongodError(Exception):
    """The embedded MongoDB cannot run. The message is for the operator: what happened and what to do."""
