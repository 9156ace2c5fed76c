"""Log levels at run time: Kafka's BROKER_LOGGER resource over Python's loggers (KIP-412).

The root is called "root"; the loggers are those of this process that exist. Levels are Kafka's names.
"""

from __future__ import annotations

import logging

from odradek.protocol.errors import ErrorCode, KafkaError

ROOT = "root"
TRACE = 5

_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}


def loggers() -> dict[str, str]:
    """Name to effective level, of every logger there is."""
    named = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    found = {ROOT: logging.getLogger(), **named}
    return {name: _level_name(logger.getEffectiveLevel()) for name, logger in sorted(found.items())}


def _level_name(level: int) -> str:
    """The least severe of Kafka's levels that lets through what `level` does."""
    for name, value in _LEVELS.items():
        if level >= value:
            return name
    return "TRACE"


def check_level(name: str, level: str | None) -> None:
    """Whether the logger may be set to `level`; None unsets it. Raises KafkaError."""
    if name not in loggers():
        raise KafkaError(ErrorCode.invalid_config, f"There is no logger {name}")
    if level is None:
        if name == ROOT:
            raise KafkaError(ErrorCode.invalid_request, "The root logger always has a level")
    elif level not in _LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"{level} is no level for {name}; it can be {', '.join(sorted(_LEVELS))}",
        )


def set_level(name: str, level: str | None) -> None:
    """Set the level, or with None take its parent's again. Checked before."""
    logger = logging.getLogger(None if name == ROOT else name)
    logger.setLevel(logging.NOTSET if level is None else _LEVELS[level])
