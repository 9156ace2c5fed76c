"""Dynamic log levels: the BROKER_LOGGER resource of Kafka for Python's loggers (KIP-412).

The root logger is "root"; other loggers are those that exist in this process. Levels have Kafka's names.
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


_altered: dict[str, tuple[int, int]] = {}
"""Loggers whose levels were set here: the level before the first change, and the newest level."""


def loggers() -> dict[str, str]:
    """Effective levels by logger name."""
    named = {
        name: logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    found = {ROOT: logging.getLogger(), **named}
    return {name: _level_name(logger.getEffectiveLevel()) for name, logger in sorted(found.items())}


def _level_name(level: int) -> str:
    """Least severe Kafka level that `level` enables."""
    for name, value in _LEVELS.items():
        if level >= value:
            return name
    return "TRACE"


def check_level(name: str, level: str | None) -> None:
    """Check the logger and level; None unsets the level. Raises KafkaError."""
    if name not in loggers():
        raise KafkaError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
    if level is None:
        if name == ROOT:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Removing the log level of the {ROOT} logger is not allowed",
            )
    elif level not in _LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level."
            f" Valid log levels are {', '.join(sorted(_LEVELS))}",
        )


def set_level(name: str, level: str | None) -> None:
    """Set a checked level, or with None inherit the level of the parent."""
    logger = _logger(name)
    before, _ = _altered.get(name, (logger.level, 0))
    new = logging.NOTSET if level is None else _LEVELS[level]
    _altered[name] = before, new
    logger.setLevel(new)


def restore_levels() -> None:
    """Undo what `set_level` changed, except where something else has set the level since.

    Only for tests that share a broker.
    """
    while _altered:
        name, (before, newest) = _altered.popitem()
        logger = _logger(name)
        if logger.level == newest:
            logger.setLevel(before)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)
