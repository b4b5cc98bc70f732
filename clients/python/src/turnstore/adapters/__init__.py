"""Adapters that put turnstore into agent hosts. Each needs its host's package, which an extra installs."""
