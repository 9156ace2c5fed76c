"""Maps the folders at the root to the namespace package `odradek`; all else is in pyproject.toml."""

from setuptools import find_packages, setup

FLOORS = [
    "seams",
    "protocol",
    "client",
    "storage",
    "replication",
    "broker",
    "cli",
    "testing",
    "pipeline",
    "bench",
]

DATA = ["bench.results", "bench.peers.kfake_server"]

found = find_packages(include=[pattern for floor in FLOORS for pattern in (floor, f"{floor}.*")])
setup(
    packages=[f"odradek.{package}" for package in [*found, *DATA]],
    package_dir={f"odradek.{floor}": floor for floor in FLOORS},
    package_data={
        **{f"odradek.{floor}": ["py.typed"] for floor in FLOORS},
        "odradek.bench.results": ["*.json"],
        "odradek.bench.load": ["*.c", "*.h"],
        "odradek.bench.peers": ["pom.xml", "spark_connector.xml", "delta.xml"],
        "odradek.bench.peers.kfake_server": ["main.go", "go.*"],
    },
)
