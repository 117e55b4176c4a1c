"""Who says who may hold: this registry's own queue, or a lock service that people run already.

A coordinator is named by a URL: `postgres`, `etcd://HOST:2379,HOST:2379`, `zookeeper://HOST:2181`,
`redis://HOST:6379`. docs/coordinators.md says what each gives, and what it does not.
"""

from importlib import import_module
from types import ModuleType

from pgfence.coordinators.protocol import Capabilities, Claimant, Inspector
from pgfence.errors import InvalidArgumentError, LockServiceError

#: The module of each scheme, and what it needs from elsewhere.
_MODULES = {
    "postgres": ("postgres", None),
    "etcd": ("etcd", "httpx"),
    "etcds": ("etcd", "httpx"),
    "zookeeper": ("zookeeper", "kazoo"),
    "redis": ("redis", "redis"),
    "rediss": ("redis", "redis"),
}


def capabilities(name: str) -> Capabilities:
    """What a coordinator gives, by its name."""
    found: Capabilities = _module(name).CAPABILITIES
    return found


def claimant(url: str) -> Claimant:
    """The worker's side of a coordinator. Nothing is asked yet.

    Raises `InvalidArgumentError` for a URL of no coordinator, `LockServiceError` when its client
    library is missing.
    """
    found: Claimant = _module(_scheme(url)).claimant(url)
    return found


def inspector(url: str) -> Inspector:
    """The registry's side of a lock service; raises as `claimant` does."""
    scheme = _scheme(url)
    if scheme == "postgres":
        raise InvalidArgumentError("postgres is the registry itself: there is nothing to look at")
    found: Inspector = _module(scheme).inspector(url)
    return found


def _scheme(url: str) -> str:
    # Not by urlsplit, which refuses some URLs: what is wrong with one its module knows to say.
    return url.partition(":")[0].lower()


def _module(scheme: str) -> ModuleType:
    if scheme not in _MODULES:
        known = ", ".join(dict.fromkeys(name for name, _ in _MODULES.values()))
        raise InvalidArgumentError(f"there is no coordinator {scheme!r}: {known}", rule="R37")
    name, library = _MODULES[scheme]
    try:
        return import_module(f"pgfence.coordinators.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise LockServiceError(
            f"coordinator {name} needs the package {library}: pip install 'pgfence[{name}]'"
        ) from error
