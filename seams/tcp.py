"""TCP connections and listeners on the loop, which try a system call first and wait only if it would block.

trio's sockets enter the scheduler on every call. Here a call that does not block returns without it, and a connection
enters the scheduler after 1 MiB or 64 calls, so that no peer delays the others. After a receive that emptied the
socket, the next receive waits first, because the peer usually waits for a response. No locks are needed: a connection
is used only on the loop, by one sending and one receiving task.

Adjacent buffers are sent in one `sendmsg`. A file slice of `SENDFILE_MIN_BYTES` or more is sent by sendfile(2); a smaller
one is read and sent with its neighbours, which is cheaper than two more system calls. If the file was truncated and
ends before the slice, sendfile returns 0, which is an error. The fields before a slice are sent with its first bytes
(MSG_MORE): sent alone, they would wake up the peer too early, which on a busy machine costs half as much CPU as
sending 1 MiB.

Every frame is sent completely or is the last: an error after its first byte aborts the connection with a reset, so
that the peer cannot mistake part of a response for a regular close.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from ipaddress import ip_address

import trio

from odradek.seams.descriptors import Descriptor
from odradek.seams.files import IOV_MAX, Buffer, FileSlice, rest_after
from odradek.seams.network import (
    DEFAULT_OPTIONS,
    Address,
    ConnectionLost,
    ConnectionRefused,
    Listener,
    Selector,
    SocketOptions,
)
from odradek.seams.selector import HAS_EPOLL, EachAlone, TcpSelector
from odradek.seams.system_calls import send_file

log = logging.getLogger("odradek.network")

SENDFILE_MIN_BYTES = 128 << 10
"""Smallest file slice in bytes that is sent by sendfile(2); smaller ones are read and sent with their neighbours.

Measured on loopback: ten slices of 8 KiB in a frame take 49 µs if read and 71 µs with sendfile. At 64 KiB the rates are
2.0 GB/s and 1.4 GB/s. From 128 KiB they are equal, and sendfile needs no memory.
"""

TURN_BYTES = 1 << 20
"""Bytes that a connection may send and receive before it yields to other tasks."""

TURN_CALLS = 64
ACCEPT_BACKOFF_SECONDS = 0.1

_SMALL_SLICES_BYTES = 256 << 10  # limit of bytes in memory per connection
_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
_HALF_CLOSED: int | None = getattr(select, "POLLRDHUP", None)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PORT_TRIES = 16

# Errors of accept(2) for a connection that was lost in the queue, or for the network below it.
_LOST_IN_QUEUE = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED", "EPERM", "EPROTO", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
        "EHOSTUNREACH", "EOPNOTSUPP", "ENETUNREACH", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_NO_SUCH_FAMILY = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT))
# sendfile uses two descriptors: these are errors of the socket, all others are errors of the file.
_PEER_GONE = frozenset(
    (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT,
     errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ESHUTDOWN,
     errno.EPROTOTYPE)  # macOS, while the peer's reset is processed
)  # fmt: skip


class TcpConnection:
    """A connected TCP socket, created by `TcpNetwork`."""

    def __init__(self, sock: socket.socket, peer: Address) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock = sock
        self._peer = peer
        self._local = _address(sock.getsockname())
        self._closed = False
        self._sending = False
        self._frame_begun = False
        self._is_cut_short = False
        """Whether `send_nowait` left bytes that the next `send` must send first."""
        self._turn_bytes = 0
        self._turn_calls = 0
        self._sent_bytes = 0
        self.on_close: Callable[[], None] | None = None
        """Callback of the selector while it receives on this connection."""
        self._wait: trio.CancelScope | None = None
        """Cancel scope of `wait_readable` while it waits."""
        self._drained = False
        """Whether the last receive emptied the socket. Then the next one waits first, because the peer probably
        waits for its response."""

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @property
    def local(self) -> Address:
        return self._local

    @property
    def peer(self) -> Address:
        return self._peer

    async def receive_into(self, view: memoryview) -> int:
        if not view:
            raise ValueError("the buffer to receive into is empty")
        self._turn_calls += 1
        is_over = self._turn_calls > TURN_CALLS or self._turn_bytes >= TURN_BYTES
        if is_over and not self._drained:  # otherwise the wait yields
            await self._end_turn()  # before the receive, so that a cancellation loses no bytes
        while True:
            if self._drained:
                self._turn_bytes = self._turn_calls = 0
                # Raises if the connection was closed after the last receive; trio would not raise ConnectionLost
                fd = self.fileno()
                try:
                    await trio.lowlevel.wait_readable(fd)
                except (trio.ClosedResourceError, OSError) as error:
                    raise self._lost(error) from error
            try:
                received = self._sock.recv_into(view)
            except BlockingIOError:
                self._drained = True
                continue
            except OSError as error:
                raise self._lost(error) from error
            self._turn_bytes += received
            self._drained = received < len(view)
            return received

    async def wait_readable(self) -> None:
        self._turn_bytes = self._turn_calls = 0
        fd = self.fileno()
        try:
            with trio.CancelScope() as self._wait:
                await trio.lowlevel.wait_readable(fd)
                self._drained = False
        except (trio.ClosedResourceError, OSError) as error:
            raise self._lost(error) from error
        finally:
            self._wait = None

    def interrupt(self) -> None:
        if self._wait is not None:
            self._wait.cancel()

    @property
    def is_hung_up(self) -> bool:
        if self._closed:
            return False
        poll = select.poll()
        # Linux always reports hang-ups and errors, macOS only with a requested event
        poll.register(self._sock, select.POLLHUP if _HALF_CLOSED is None else _HALF_CLOSED)
        return bool(poll.poll(0)) or (_HALF_CLOSED is None and self._is_at_end)

    @property
    def _is_at_end(self) -> bool:
        """Whether the next receive finds the end of the stream or an error; False if there are bytes before it."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive_nowait(self, view: memoryview) -> int | None:
        """Bytes received: 0 at the end of the stream, None if no data is available. For `TcpSelector`."""
        self._turn_bytes = self._turn_calls = 0
        try:
            received = self._sock.recv_into(view)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(error) from error
        self._drained = received < len(view)
        return received

    def fileno(self) -> int:
        """The descriptor of the socket. Raises ConnectionLost once closed."""
        if self._closed:
            raise ConnectionLost("the connection was closed on this side")
        return self._sock.fileno()

    async def send(self, parts: Sequence[Buffer | FileSlice]) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        self._sending = True
        self._frame_begun = self._is_cut_short
        self._is_cut_short = False
        try:
            if len(parts) == 1 and not isinstance(parts[0], FileSlice):
                await self._send_buffers([parts[0]])
            else:
                await self._send_parts(parts)
        except BaseException:
            if self._frame_begun:
                self.abort()
            raise
        finally:
            self._sending = False

    def send_nowait(self, data: Buffer) -> int:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from error
        if 0 < sent < len(data):
            self._is_cut_short = True
        self._turn_bytes += sent
        self._sent_bytes += sent
        return sent

    def abort(self) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):  # the peer closed the connection first
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._close()

    async def aclose(self) -> None:
        """Close the connection: the kernel delivers sent bytes, and pending calls raise ConnectionLost."""
        if self._frame_begun if self._sending else self._is_cut_short:
            self.abort()
        self._close()
        await trio.lowlevel.checkpoint()

    async def _send_parts(self, parts: Sequence[Buffer | FileSlice]) -> None:
        together: list[Buffer] = []
        read_bytes = 0
        for part in parts:
            if not isinstance(part, FileSlice):
                together.append(part)
            elif part.size < SENDFILE_MIN_BYTES or not isinstance(part.file, Descriptor):
                for position in range(part.position, part.position + part.size, TURN_BYTES):
                    if read_bytes >= _SMALL_SLICES_BYTES:
                        await self._send_buffers(together)
                        together = []
                        read_bytes = 0
                    size = min(TURN_BYTES, part.position + part.size - position)
                    together.append(self._read(part, position, size))
                    read_bytes += size
            else:
                if together:
                    await self._send_buffers(together, _MORE_FOLLOWS)
                    together = []
                    read_bytes = 0
                await self._send_file(part.file, part.position, part.size)
        if together:
            await self._send_buffers(together)

    async def _send_buffers(self, buffers: list[Buffer], flags: int = 0) -> None:
        left = sum(map(len, buffers))
        while left:
            self._turn_calls += 1
            if self._turn_calls > TURN_CALLS or self._turn_bytes >= TURN_BYTES:
                await self._end_turn()
            try:
                if len(buffers) == 1:
                    sent = self._sock.send(buffers[0], flags)
                else:
                    sent = self._sock.sendmsg(buffers[:IOV_MAX], (), flags)
            except BlockingIOError:
                await self._wait_until_writable()
                continue
            except OSError as error:
                raise self._lost(error) from error
            self._frame_begun = True
            self._turn_bytes += sent
            self._sent_bytes += sent
            left -= sent
            if left:
                buffers = rest_after(buffers, sent)

    async def _send_file(self, file: Descriptor, position: int, size: int) -> None:
        end = position + size
        while position < end:
            self._turn_calls += 1
            if self._turn_calls > TURN_CALLS or self._turn_bytes >= TURN_BYTES:
                await self._end_turn()
            source = file.borrow()
            try:
                sent = send_file(
                    self._sock.fileno(), source, position, min(end - position, TURN_BYTES)
                )
            except BlockingIOError:
                sent = -1
            except OSError as error:
                if self._closed or error.errno in _PEER_GONE:
                    raise self._lost(error) from error
                error.filename = file.name
                raise
            finally:
                file.give_back()
            if sent < 0:
                await self._wait_until_writable()
                continue
            if not sent:
                self._ended_early(file.name)
            self._frame_begun = True
            self._turn_bytes += sent
            self._sent_bytes += sent
            position += sent

    def _read(self, part: FileSlice, position: int, size: int) -> Buffer:
        try:
            data = part.file.read_at(position, size)
        except OSError as error:
            error.filename = str(part.file.path)
            raise
        if len(data) < size:
            self._ended_early(str(part.file.path))
        return data

    def _ended_early(self, name: str) -> None:
        self.abort()
        raise ConnectionLost(f"{name} ended inside a slice of it that was being sent")

    async def _end_turn(self) -> None:
        """Yield to other tasks after enough work without waiting."""
        self._turn_bytes = self._turn_calls = 0
        await trio.lowlevel.checkpoint()

    async def _wait_until_writable(self) -> None:
        # All steps of a sendfile but the last are sent with MSG_MORE, so after a partial sendfile the kernel
        # holds back the last bytes for up to 200 ms. Setting TCP_NODELAY again sends them.
        with contextlib.suppress(OSError):  # the wait raises the error
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._turn_bytes = self._turn_calls = 0
        try:
            await trio.lowlevel.wait_writable(self._sock)
        except (trio.ClosedResourceError, OSError) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> ConnectionLost:
        if self._closed:
            return ConnectionLost("the connection was closed on this side")
        return ConnectionLost(f"{self._peer}: {error}")

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if self.on_close is not None:
                self.on_close()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class TcpListener:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._address = _address(sock.getsockname())
        self._closed = False
        self._is_short_of_resources = False

    @property
    def address(self) -> Address:
        return self._address

    async def accept(self) -> TcpConnection:
        """Accept the next connection. Raises ConnectionLost once closed.

        Without free file descriptors it logs once and retries, while the peers wait in the queue.
        """
        await trio.lowlevel.checkpoint()  # many new connections must not delay the existing ones
        while True:
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                await self._wait_for_peers()
                continue
            except OSError as error:
                if self._closed:
                    raise ConnectionLost("the listener was closed") from error
                if error.errno in _OUT_OF_RESOURCES:
                    await self._wait_for_resources(error)
                    continue
                if error.errno in _LOST_IN_QUEUE:
                    continue
                raise
            self._is_short_of_resources = False
            try:
                return TcpConnection(sock, _address(peer))
            except OSError:  # reset by the peer before its options were set
                sock.close()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
        await trio.lowlevel.checkpoint()

    async def _wait_for_peers(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._sock)
        except (trio.ClosedResourceError, OSError) as error:
            raise ConnectionLost("the listener was closed") from error

    async def _wait_for_resources(self, error: OSError) -> None:
        if not self._is_short_of_resources:
            self._is_short_of_resources = True
            log.warning("%s: cannot accept connections for now: %s", self._address, error.strerror)
        await trio.sleep(ACCEPT_BACKOFF_SECONDS)


class TcpNetwork:
    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS
    ) -> list[Listener]:
        """Raises OSError if bind(2) fails (EADDRINUSE, EACCES) or the host does not resolve."""
        addresses = await _addresses_to_bind(host, port)
        for last_try in [False] * (_PORT_TRIES - 1) + [True]:
            try:
                return _bind_all(addresses, port, options)
            except OSError as error:
                # The port chosen for one address family may be in use in the other.
                if port or last_try or error.errno != errno.EADDRINUSE:
                    raise
        raise AssertionError("unreachable")

    async def connect(self, host: str, port: int) -> TcpConnection:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except UnicodeError as error:  # raised by the codec for host names
            raise ConnectionLost(f"{Address(host, port)}: no host is named so: {error}") from error
        except OSError as error:
            causes = _causes(error)
            kind = ConnectionRefused if _is_refusal(causes) else ConnectionLost
            raise kind(f"{Address(host, port)}: {_reason(causes[0])}") from error
        sock = socket.socket(fileno=stream.socket.detach())
        try:
            return TcpConnection(sock, _address(sock.getpeername()))
        except OSError as error:
            sock.close()
            raise ConnectionLost(f"{Address(host, port)}: {_reason(error)}") from error

    async def own_name(self) -> str:
        name = socket.gethostname()
        try:
            found = await trio.socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
        except (OSError, UnicodeError):  # then others cannot resolve it either
            return "localhost"
        return next((canonical for *_, canonical, _ in found if canonical), name)

    def selector(self) -> Selector:
        return TcpSelector() if HAS_EPOLL else EachAlone()


async def _addresses_to_bind(host: str, port: int) -> list[tuple[int, str, int]]:
    """The distinct (family, host, scope) to bind to, in the order of the resolver."""
    if not host:
        every: list[tuple[int, str, int]] = [(socket.AF_INET, "0.0.0.0", 0)]
        if socket.has_ipv6:
            every.append((socket.AF_INET6, "::", 0))
        return every
    plain = host.encode() if host.isascii() else host  # avoids the codec for host names
    try:
        found = await trio.socket.getaddrinfo(
            plain, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:
        raise OSError(errno.EADDRNOTAVAIL, f"no host is named so: {error}") from error
    addresses = {
        (int(family), str(address[0]), int(address[3]) if len(address) > 3 else 0): None
        for family, _, _, _, address in found
        if family in (socket.AF_INET, socket.AF_INET6)
    }
    return list(addresses)


def _bind_all(
    addresses: Sequence[tuple[int, str, int]], port: int, options: SocketOptions
) -> list[Listener]:
    """Listen on one port of all addresses whose family this machine supports."""
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, host, scope in addresses:
            try:
                sock = _bind(family, host, scope, port, options)
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY or len(addresses) == 1:
                    raise
                absent = error  # "localhost" is also ::1, even if IPv6 is disabled
                continue
            bound.append(sock)
            port = sock.getsockname()[1]
        if absent and not bound:
            raise absent
        return [TcpListener(sock) for sock in bound]
    except BaseException:
        for sock in bound:
            sock.close()
        raise


def _bind(family: int, host: str, scope: int, port: int, options: SocketOptions) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit the buffer sizes, and their window is fixed before they are accepted.
        for option, size in (
            (socket.SO_SNDBUF, options.send_buffer_bytes),
            (socket.SO_RCVBUF, options.receive_buffer_bytes),
        ):
            if size >= 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        if ip_address(host).is_loopback:
            _send_unpaced(sock)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port, 0, scope))
        else:
            sock.bind((host, port))
        sock.listen(options.backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _send_unpaced(sock: socket.socket) -> None:
    """Use Reno congestion control on a listener that only this machine can reach.

    If the system's default is BBR, it paces segments with timers, which costs half of the CPU of a fetch and is useless
    on loopback. Linux always has Reno. A connection inherits it only if the listener has it before the connection is
    made.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _address(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return Address(name[0], name[1])


def _causes(error: OSError) -> Sequence[BaseException]:
    """The errors in trio's "all attempts to connect failed", one for each address of the host."""
    cause: BaseException = error
    while isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    return cause.exceptions if isinstance(cause, BaseExceptionGroup) else [cause]


def _reason(error: BaseException) -> str:
    """Text of an error without the address, which trio's text contains and the caller adds."""
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError) or not error.errno:
        return str(getattr(error, "strerror", None) or error)
    return os.strerror(error.errno)


def _is_refusal(causes: Sequence[BaseException]) -> bool:
    """Whether every address of a supported family refused the connection."""
    codes = {each.errno if isinstance(each, OSError) else None for each in causes}
    return codes - _NO_SUCH_FAMILY == {errno.ECONNREFUSED}
