"""Odradek, a Kafka-compatible broker on trio. `odradek.testing` has brokers and clusters for tests.

The other folders at the root of the repository are the subpackages of this package (setup.py). It is a regular package,
so that Python prefers an installed Odradek to a folder named `odradek` next to a script, such as a clone of the
repository. Python would merge or prefer such a folder if `odradek` were a namespace package.
"""


def __getattr__(name: str) -> str:
    """Return `__version__`, which is read from the metadata of the distribution only when it is used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("odradek")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__: str
