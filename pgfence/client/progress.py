"""A progress bar on stderr, where somebody looks at it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any


@contextmanager
def progress_bar(
    title: str, items: Iterable[Any], *, wanted: bool
) -> Iterator[Callable[[int], object]]:
    """Call what this gives with the number of items that are done. No terminal: no bar."""
    if not wanted:
        yield lambda done: None
        return
    # Here and not above: most workers have no use for it.
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=length_hint(items) or None)
        yield lambda done: progress.advance(task, done)
