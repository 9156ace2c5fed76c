"""A broker in a process of its own, for tests that patch modules of their process.

The test's process writes one JSON object per line to the broker's standard input: the options of the node, and then
calls. The broker writes one per line to its standard output: log records, and the result of each call. It stops when
its input ends. The test's process emits the log records in its own loggers, so that pytest captures them.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypedDict

from odradek.testing.broker_death import (
    BrokerDied,
    RecentMessages,
    broker_died,
    describe_error,
    describe_exit,
)

if TYPE_CHECKING:
    from odradek.broker.node import Node

STOP_SECONDS = 30.0
STDERR_BYTES = 4096
"""The end of the standard error that the message of BrokerDied contains."""

Message = dict[str, Any]


class NodeOptions(TypedDict):
    """Options of an `EmbeddedNode` that can be sent to another process."""

    topics: Mapping[str, int]
    configs: Mapping[str, str]
    data: str
    listen: str
    tier: str | None
    diskless: str | None


class BrokerProcess:
    """The broker's process, seen from the test's process. Any thread may call its methods."""

    def __init__(self, options: NodeOptions, messages: RecentMessages, *, start_s: float) -> None:
        """Start it and wait until it serves. Raises its errors, and TimeoutError after `start_s` seconds."""
        self._messages = messages
        self._calls = threading.Lock()
        self._results: queue.Queue[Message | None] = queue.Queue()
        self._cause: str | None = None
        self.bootstrap = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "odradek.testing.broker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": _import_path()},
        )
        self._reader = threading.Thread(target=self._read, name="odradek-output", daemon=True)
        self._reader.start()
        try:
            self.bootstrap = self._call({**options}, start_s)
        except BaseException:
            self._kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def node(self) -> Node:
        raise RuntimeError("the broker runs in a process of its own: its node is not accessible")

    def check_alive(self) -> None:
        """Raise BrokerDied if the process has ended."""
        if self._process.poll() is not None:
            raise self._died()

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._call({"method": "create_topic", "args": [name, partitions, dict(configs)]})

    def reset(self) -> None:
        self._call({"method": "reset", "args": []})

    def close(self) -> None:
        """Stop the broker and wait for its end. Raises BrokerDied if it has ended by itself, or with an error."""
        has_ended = self._process.poll() is not None
        with suppress(OSError):
            _stream(self._process.stdin).close()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            raise TimeoutError(f"the broker did not stop in {STOP_SECONDS:g} s") from None
        self._reader.join()
        died = self._died() if has_ended or status != 0 else None
        self._close_files()
        if died is not None:
            raise died

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._close_files()

    def _close_files(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(OSError):
                _stream(stream).close()

    def _call(self, message: Message, timeout_s: float | None = None) -> Any:
        """Send a call and return its result. Raises the error of the call, or BrokerDied."""
        message["level"] = logging.getLogger("odradek").getEffectiveLevel()
        stdin = _stream(self._process.stdin)
        with self._calls:
            try:
                stdin.write(json.dumps(message).encode() + b"\n")
                stdin.flush()
            except OSError:
                raise self._died() from None
            try:
                result = self._results.get(timeout=timeout_s)
            except queue.Empty:
                raise TimeoutError(f"odradek did not open in {timeout_s:g} s") from None
        if result is None:
            raise self._died()
        if "error" in result:
            raise _decode_error(result)
        return result["result"]

    def _read(self) -> None:
        """Read the process's output until it ends."""
        for line in _stream(self._process.stdout):
            message = json.loads(line)
            if "log" in message:
                _emit(message["log"])
            elif "cause" in message:
                self._cause = message["cause"]
            else:
                self._results.put(message)
        self._results.put(None)

    def _died(self) -> BrokerDied:
        status = self._process.wait()
        self._reader.join()
        cause = describe_exit(status)
        if self._cause is not None:
            cause = f"{self._cause} ({cause})"
        lines = [*self._messages.lines]
        with suppress(OSError, ValueError):
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - STDERR_BYTES))
            lines += self._stderr.read().decode(errors="replace").splitlines()
        return broker_died(f"the broker on {self.bootstrap} (process {self.pid})", cause, lines)


def _import_path() -> str:
    """This process's import path, as in multiprocessing."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _emit(values: Mapping[str, Any]) -> None:
    logger = logging.getLogger(values["name"])
    if logger.isEnabledFor(values["levelno"]):
        logger.handle(logging.makeLogRecord(dict(values)))


def _decode_error(result: Message) -> BaseException:
    try:
        error = pickle.loads(base64.b64decode(result["pickled"]))
    except Exception:
        error = None
    return error if isinstance(error, BaseException) else RuntimeError(result["error"])


# The broker's process


def _encode_error(error: BaseException) -> Message:
    try:
        pickled = base64.b64encode(pickle.dumps(error)).decode()
    except Exception:
        pickled = ""
    return {"error": describe_error(error), "pickled": pickled}


class _Output:
    """Writes messages, from any thread."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb", buffering=0)
        self._lock = threading.Lock()
        os.dup2(2, 1)  # what else is printed goes to the standard error

    def send(self, message: Message) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock, suppress(OSError):  # the test's process has ended: so does this one
            self._file.write(line)


class _LogSender(logging.Handler):
    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        values = {
            name: getattr(record, name)
            for name in ("name", "levelno", "levelname", "pathname", "filename", "module", "lineno")
        }
        values |= {"msg": text, "funcName": record.funcName, "created": record.created}
        values |= {"threadName": record.threadName, "process": record.process}
        self._output.send({"log": values})


def _main() -> NoReturn:
    import faulthandler
    import signal
    import traceback

    import trio

    faulthandler.enable()
    # Ctrl-C ends the test's process, which stops this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = _Output()
    logging.getLogger().addHandler(_LogSender(output))
    try:
        trio.run(_serve, output)
    except BaseException as error:
        output.send({"cause": describe_error(error)})
        traceback.print_exc()
        os._exit(1)  # Python cannot finalize while a thread waits for the standard input
    sys.exit(0)


async def _serve(output: _Output) -> None:
    import trio

    from odradek.testing.embedded_node import EmbeddedNode

    async def receive() -> Message | None:
        line = await trio.to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True)
        if not line:
            return None
        message: Message = json.loads(line)
        logging.getLogger().setLevel(message.pop("level"))
        return message

    options: Any = await receive()
    if options is None:
        return
    has_started = False
    try:
        async with EmbeddedNode(**options) as node:
            has_started = True
            assert node.node is not None, "it has started"
            output.send({"result": str(node.node.endpoints[0].address)})
            while (call := await receive()) is not None:
                try:
                    await getattr(node, call["method"])(*call["args"])
                except Exception as error:
                    output.send(_encode_error(error))
                else:
                    output.send({"result": None})
    except Exception as error:
        if has_started:
            raise
        output.send(_encode_error(error))


if __name__ == "__main__":
    _main()
