"""Maps the folders at the root to the package `odradek` and compiles its extension modules.

`package/` is the package itself, and the other folders are its subpackages. The root of the repository has no
`__init__.py`: a script next to a clone named `odradek` would import the clone instead of the installed package.
All else is in pyproject.toml.
"""

import shutil

from setuptools import Extension, find_packages, setup

shutil.rmtree("build", ignore_errors=True)  # modules that were renamed since would be installed too

LAYERS = [
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

found = find_packages(include=[pattern for layer in LAYERS for pattern in (layer, f"{layer}.*")])
setup(
    packages=["odradek", *(f"odradek.{package}" for package in [*found, *DATA])],
    package_dir={"odradek": "package", **{f"odradek.{layer}": layer for layer in LAYERS}},
    ext_modules=[
        Extension(
            "odradek.protocol.records._record_scan",
            ["protocol/records/_record_scan.c"],
            depends=["protocol/records/_cursor.h"],
            optional=True,  # record_scan.py has the same function in Python
        ),
        Extension(
            "odradek.storage.compaction._offset_map",
            ["storage/compaction/_offset_map.c"],
            depends=["protocol/records/_cursor.h"],
            optional=True,  # offset_map.py has the same class in Python
        ),
    ],
    package_data={
        **{f"odradek.{layer}": ["py.typed"] for layer in LAYERS},
        "odradek": ["py.typed"],
        "odradek.bench.results": ["instructions.json"],
        "odradek.bench.load": ["*.c", "*.h"],
        "odradek.bench.peers": ["pom.xml", "spark_connector.xml", "delta.xml"],
        "odradek.bench.peers.kfake_server": ["main.go", "go.*"],
    },
)
