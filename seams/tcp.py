"""TCP on the loop: connections that try the system call first and wait only when told to.

trio's own sockets pass through the scheduler on every call; here a call that can be served at once
is, and a connection that is served at once again and again passes through the scheduler after a MiB
or 64 calls, so that no peer holds up the others. A receive that took all there was makes the next one
wait first: its peer waits for an answer, mostly. Under this file nothing is locked: a connection
belongs to the loop, with one task sending and one receiving.

Sending: neighbouring buffers go into one `sendmsg`; a slice of `SENDFILE_MIN_BYTES` or more goes by
`sendfile`; a smaller one is read and travels with its neighbours, which is cheaper than two more
system calls. A slice whose file ends early (it was truncated) makes `sendfile` return 0 for ever:
that is an error. The fields before a slice wait for its first bytes (MSG_MORE): sent by themselves
they wake up the peer for nothing that it can use, which on a busy machine costs half of what sending
a MiB does.

A frame is whole or it is the last: whatever goes wrong after its first byte aborts the connection
(a reset, so that the peer cannot take half an answer for the end of the conversation).
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
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.network import (
    DEFAULT_OPTIONS,
    Address,
    ConnectionLost,
    ConnectionRefused,
    Listener,
    Selector,
    SocketOptions,
)
from odradek.seams.selector import EachAlone, TcpSelector
from odradek.seams.vectors import IOV_MAX, rest_after

log = logging.getLogger("odradek.network")

SENDFILE_MIN_BYTES = 128 << 10
"""Slices below it are read and sent with their neighbours.

Measured on loopback: ten slices of 8 KiB in a frame take 49 µs read and 71 µs by sendfile; at 64 KiB
reading still moves 2.0 GB/s to sendfile's 1.4; from 128 KiB on they are equal, and sendfile needs no
memory.
"""

TURN_BYTES = 1 << 20
"""What a connection may move before it lets others have the loop."""

TURN_CALLS = 64
ACCEPT_BACKOFF_SECONDS = 0.1

_SMALL_SLICES_BYTES = 256 << 10  # read into memory at once, per connection
_MORE_FOLLOWS = getattr(socket, "MSG_MORE", 0)
_HALF_CLOSED = getattr(select, "POLLRDHUP", 0)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PORT_TRIES = 16

# What an accept can say of a connection that died in the queue, or of the network under it (accept(2)).
_LOST_IN_QUEUE = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED", "EPERM", "EPROTO", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
        "EHOSTUNREACH", "EOPNOTSUPP", "ENETUNREACH", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_NO_SUCH_FAMILY = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT))
# sendfile answers for two descriptors: these are the socket's, any other is the file's.
_PEER_GONE = frozenset(
    (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT,
     errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ESHUTDOWN)
)  # fmt: skip


class TcpConnection:
    """A connected socket. Made by `TcpNetwork`."""

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
        """A `send_nowait` has left the rest of its bytes to the next `send`."""
        self._turn_bytes = 0
        self._turn_calls = 0
        self._sent_bytes = 0
        self.on_close: Callable[[], None] | None = None
        """Of the selector, while it receives on this connection."""
        self._wait: trio.CancelScope | None = None
        """Of `wait_readable`."""
        self._drained = False
        """The last receive took all there was: the next one waits first, which is what it would come
        to for a peer that waits for its answer."""

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
            raise ValueError("no room to receive into")
        self._turn_calls += 1
        is_over = self._turn_calls > TURN_CALLS or self._turn_bytes >= TURN_BYTES
        if is_over and not self._drained:  # else the wait ends it
            await self._end_turn()  # before, so that a cancellation loses no bytes
        while True:
            if self._drained:
                self._turn_bytes = self._turn_calls = 0
                fd = (
                    self.fileno()
                )  # closed since the last receive, it would be no ConnectionLost to trio
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
        poll.register(self._sock, _HALF_CLOSED)  # hang-ups and errors are told in any case
        return bool(poll.poll(0))

    def receive_nowait(self, view: memoryview) -> int | None:
        """What has come, 0 at the end, None if nothing has; for `TcpSelector`, which has waited."""
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
        """Of the socket. ConnectionLost once closed."""
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
            with contextlib.suppress(OSError):  # the peer was quicker
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._close()

    async def aclose(self) -> None:
        """What was sent is delivered by the kernel; calls pending here raise ConnectionLost."""
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
                await self._wait_for_room()
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
                sent = os.sendfile(
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
                await self._wait_for_room()
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
        """Let others have the loop: enough was done without waiting."""
        self._turn_bytes = self._turn_calls = 0
        await trio.lowlevel.checkpoint()

    async def _wait_for_room(self) -> None:
        # A sendfile cut short leaves its last bytes held back as if more were to follow at once
        # (each of its steps but the last is a MSG_MORE), for 200 ms if nobody says otherwise.
        # Setting TCP_NODELAY again is how to say it: it pushes what is pending.
        with contextlib.suppress(OSError):  # the wait will tell
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
        self._short_of_room = False

    @property
    def address(self) -> Address:
        return self._address

    async def accept(self) -> TcpConnection:
        """The next connection. ConnectionLost once closed.

        Out of descriptors is the peers' wait, not an error: logged once, tried again.
        """
        await trio.lowlevel.checkpoint()  # a crowd at the door does not hold up those inside
        while True:
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                await self._wait_for_peers()
                continue
            except OSError as error:
                if self._closed:
                    raise ConnectionLost("the listener was closed") from error
                if error.errno in _NO_ROOM:
                    await self._wait_for_room(error)
                    continue
                if error.errno in _LOST_IN_QUEUE:
                    continue
                raise
            self._short_of_room = False
            try:
                return TcpConnection(sock, _address(peer))
            except OSError:  # reset before it could be set up
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

    async def _wait_for_room(self, error: OSError) -> None:
        if not self._short_of_room:
            self._short_of_room = True
            log.warning("%s: cannot accept connections for now: %s", self._address, error.strerror)
        await trio.sleep(ACCEPT_BACKOFF_SECONDS)


class TcpNetwork:
    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS
    ) -> list[Listener]:
        """OSError as bind(2) has it (EADDRINUSE, EACCES), or of a host that does not resolve."""
        addresses = await _addresses_to_bind(host, port)
        for last_try in [False] * (_PORT_TRIES - 1) + [True]:
            try:
                return _bind_all(addresses, port, options)
            except OSError as error:
                # The port picked for one family may be taken in the other.
                if port or last_try or error.errno != errno.EADDRINUSE:
                    raise
        raise AssertionError("unreachable")

    async def connect(self, host: str, port: int) -> TcpConnection:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except UnicodeError as error:  # of the codec for names
            raise ConnectionLost(f"{Address(host, port)}: no host is named so: {error}") from error
        except OSError as error:
            causes = _causes(error)
            kind = ConnectionRefused if _is_refusal(causes) else ConnectionLost
            raise kind(f"{Address(host, port)}: {causes[0]}") from error
        sock = socket.socket(fileno=stream.socket.detach())
        try:
            return TcpConnection(sock, _address(sock.getpeername()))
        except OSError as error:
            sock.close()
            raise ConnectionLost(f"{Address(host, port)}: {error}") from error

    async def own_name(self) -> str:
        name = socket.gethostname()
        try:
            found = await trio.socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
        except (OSError, UnicodeError):  # a name that is not known here is none for others either
            return "localhost"
        return next((canonical for *_, canonical, _ in found if canonical), name)

    def selector(self) -> Selector:
        return TcpSelector() if hasattr(select, "epoll") else EachAlone()


async def _addresses_to_bind(host: str, port: int) -> list[tuple[int, str, int]]:
    """(family, host, scope) to bind to, each once, in the resolver's order."""
    if not host:
        every: list[tuple[int, str, int]] = [(socket.AF_INET, "0.0.0.0", 0)]
        if socket.has_ipv6:
            every.append((socket.AF_INET6, "::", 0))
        return every
    plain = host.encode() if host.isascii() else host  # else Python loads its codec for names
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
    """Listen on all that this machine has the family for, on one port."""
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, host, scope in addresses:
            try:
                sock = _bind(family, host, scope, port, options)
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY or len(addresses) == 1:
                    raise
                absent = error  # "localhost" is ::1 too, where IPv6 may be off
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
        # Connections inherit the buffers, and their window is settled before they are accepted.
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
    """Reno on what a listener accepts from this machine alone, whatever the system's choice is.

    Where that is BBR, it guesses at a rate and lets every few segments wait for a timer: half of the
    CPU that a fetch costs, on a path that has no rate. Linux always has Reno; it is inherited only
    if it is set before a connection is made.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _address(name: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return Address(name[0], name[1])


def _causes(error: OSError) -> Sequence[BaseException]:
    """What is under trio's "all attempts to connect failed": one for each address of the host."""
    cause: BaseException = error
    while isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    return cause.exceptions if isinstance(cause, BaseExceptionGroup) else [cause]


def _is_refusal(causes: Sequence[BaseException]) -> bool:
    """By every address of a family that this machine has."""
    codes = {each.errno if isinstance(each, OSError) else None for each in causes}
    return codes - _NO_SUCH_FAMILY == {errno.ECONNREFUSED}
