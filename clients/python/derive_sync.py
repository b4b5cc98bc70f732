"""Derives the plain client (src/turnstore/synchronous) from the async one (src/turnstore/asynchronous).

The async code is the source. Its `async` and `await` are taken out and its names exchanged for those of the
plain client, token by token, so that everything else stays as it is written.

    python derive_sync.py           writes the plain client
    python derive_sync.py --check   exits 1 when the committed one is not what would be written
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "src" / "turnstore"
SOURCE = PACKAGE / "asynchronous"
DERIVED = PACKAGE / "synchronous"

NAMES = {
    "AsyncCalls": "Calls",
    "AsyncConnection": "Connection",
    "AsyncHistoryClient": "HistoryClient",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "asynchronous": "synchronous",
    # Only its `sleep` is used.
    "asyncio": "time",
}

# Where the documentation has to say something else. Each stands in the source exactly once.
PHRASES = {
    "The async client. The plain one in `turnstore.synchronous` is derived from these files.": (
        "The plain client. Derived from `turnstore.asynchronous` by derive_sync.py: make changes there."
    ),
    "`async with` block": "`with` block",
    "from any number of event loops": "from any number of threads",
    "a function that returns it (plain or async), asked": "a function that returns it, asked",
}


def derive(source: str) -> str:
    """Return the plain form of an async module, not formatted yet."""
    lines = source.splitlines(keepends=True)
    # From the end, so that the positions of what is still to come stay right.
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        text = _exchanged(token)
        if text == token.string:
            continue
        (first, start), (last, end) = token.start, token.end
        head, tail = lines[first - 1][:start], lines[last - 1][end:]
        lines[first - 1 : last] = [head + text + (tail if text else tail.removeprefix(" "))]
    return "".join(lines)


def _exchanged(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return "" if token.string in {"async", "await"} else NAMES.get(token.string, token.string)
    if token.type in {tokenize.STRING, tokenize.COMMENT}:
        text = token.string
        for phrase, other in PHRASES.items():
            text = text.replace(phrase, other)
        return re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), text)
    return token.string


def formatted(text: str, path: Path) -> str:
    """Return a module as the project's formatter writes it, with its imports in order."""
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def derived_modules() -> dict[Path, str]:
    """Return each module of the plain client with its text.

    Raises:
        ValueError: a phrase to exchange stands in the source not exactly once.
    """
    sources = {path: path.read_text("utf-8") for path in sorted(SOURCE.glob("*.py"))}
    for phrase in PHRASES:
        times = sum(text.count(phrase) for text in sources.values())
        if times != 1:
            raise ValueError(f"{phrase!r} stands {times} times in {SOURCE.name}, not once")
    return {
        DERIVED / path.name: formatted(derive(text), DERIVED / path.name) for path, text in sources.items()
    }


def main() -> int:
    """Write the plain client, or check it. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is stale")
    check = parser.parse_args().check
    modules = derived_modules()
    present = {path: path.read_text("utf-8") for path in DERIVED.glob("*.py")}
    stale = sorted(path.name for path in modules.keys() | present if modules.get(path) != present.get(path))
    if check:
        for name in stale:
            print(f"{DERIVED.name}/{name} is not what derive_sync.py makes of {SOURCE.name}/{name}")
        return 1 if stale else 0
    DERIVED.mkdir(exist_ok=True)
    for path in present.keys() - modules.keys():
        path.unlink()
    for path, text in modules.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
