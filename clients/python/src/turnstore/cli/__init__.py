"""The command `turnstore`. It needs the extra `cli`."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command with the process's arguments."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"turnstore: the command needs the extra 'cli' ({' and '.join(missing)} missing). "
            "Install it: pip install 'turnstore[cli]'"
        )
    from turnstore.cli.commands import app

    app(prog_name="turnstore")
