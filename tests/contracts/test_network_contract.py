"""Contract of `Network`, `Listener`, `Connection` and `Selector`, for TCP and virtual wires."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path as OsPath

import pytest
import trio
import trio.testing

from odradek.seams.files import Buffer, File, FileSlice, Path
from odradek.seams.network import (
    Connection,
    ConnectionLost,
    ConnectionRefused,
    Listener,
    Selector,
)
from odradek.seams.real_files import RealFiles
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.contracts.two_hosts import TwoHosts, receive

MIB = 1 << 20
TIMEOUT_SECONDS = 20
THREE_MIB = b"".join(b"%07d\n" % n for n in range(3 * MIB // 8))


async def send_and_receive(
    sender: Connection, receiver: Connection, parts: list[Buffer | FileSlice], size: int
) -> bytes:
    received = b""

    async def take() -> None:
        nonlocal received
        received = await receive(receiver, size)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await sender.send(parts)
    return received


@pytest.fixture(params=["real file", "virtual file"])
def file(request: pytest.FixtureRequest, tmp_path: OsPath) -> File:
    """Three MiB of different lines."""
    files = RealFiles(max_open=8) if request.param == "real file" else VirtualFiles(VirtualDisk())
    path = Path(tmp_path) / "f"
    files.make_directory(path.parent)
    made = files.open(path, create=True)
    made.append_v([THREE_MIB])
    return made


class TestTalking:
    async def test_bytes_are_sent_in_both_directions(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        await client.send([b"ques", bytearray(b"ti"), memoryview(b"on"), b""])
        assert await receive(server, 8) == b"question"
        await server.send([b"answer"])
        assert await receive(client, 6) == b"answer"

    async def test_both_ends_know_both_addresses(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        assert client.local == server.peer
        assert client.peer == server.local
        assert client.peer.host == hosts.name

    async def test_cancelled_receive_loses_no_bytes(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        room = memoryview(bytearray(10))
        with trio.move_on_after(0):
            await server.receive_into(room)
        await client.send([b"after"])
        assert await receive(server, 5) == b"after"

    async def test_connection_is_readable_with_bytes_and_at_the_end(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        waited = trio.Event()

        async def wait() -> None:
            await server.wait_readable()
            waited.set()

        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert not waited.is_set()
                await client.send([b"there"])
            await server.wait_readable()
            assert await receive(server, 5) == b"there"
            await client.aclose()
            await server.wait_readable()
            assert await receive(server, 1) == b""

    async def test_interrupted_wait_loses_no_bytes(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        server.interrupt()  # no task waits, so this has no effect
        with trio.fail_after(TIMEOUT_SECONDS):
            for _ in range(2):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.wait_readable)
                    await trio.testing.wait_all_tasks_blocked()
                    server.interrupt()
            await client.send([b"after"])
            assert await receive(server, 5) == b"after"

    async def test_wait_on_aborted_connection_fails(self, hosts: TwoHosts) -> None:
        _, server = await hosts.connected()

        async def wait() -> None:
            with pytest.raises(ConnectionLost):
                await server.wait_readable()

        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                server.abort()
            await wait()

    async def test_send_of_nothing(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        await client.send([])
        await client.send([b""])
        await client.send([b"x"])
        assert await receive(server, 1) == b"x"

    async def test_receive_into_empty_buffer_fails(self, hosts: TwoHosts) -> None:
        client, _ = await hosts.connected()
        with pytest.raises(ValueError):
            await client.receive_into(memoryview(b"").cast("B"))

    async def test_send_of_more_parts_than_one_system_call_takes(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        parts: list[Buffer | FileSlice] = [b"%06d" % n for n in range(5000)]
        received = await send_and_receive(client, server, parts, 30_000)
        assert received == b"".join(b"%06d" % n for n in range(5000))

    async def test_send_of_more_bytes_than_the_network_buffers(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        big = bytes(range(256)) * (32 * MIB // 256)
        received = await send_and_receive(client, server, [b"<", big, b">"], len(big) + 2)
        assert received == b"<" + big + b">"

    async def test_send_nowait_returns_the_number_of_sent_bytes(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        assert client.send_nowait(b"ques") == 4
        assert client.send_nowait(memoryview(bytearray(b"tion"))) == 4
        assert await receive(server, 8) == b"question"
        big = THREE_MIB * 8
        sent_bytes = client.send_nowait(big)
        assert 0 < sent_bytes < len(big)
        assert client.sent_bytes == 8 + sent_bytes
        received = await send_and_receive(client, server, [big[sent_bytes:], b"."], len(big) + 1)
        assert received == big + b"."

    async def test_cancelled_rest_of_send_nowait_ends_the_connection(self, hosts: TwoHosts) -> None:
        """After a cancelled send of the rest, no other frame may be sent."""
        client, _server = await hosts.connected()
        while client.send_nowait(bytes(MIB)):
            pass
        with trio.move_on_after(0):
            await client.send([bytes(64 * MIB)])
        with pytest.raises(ConnectionLost):
            client.send_nowait(b"another")

    async def test_close_inside_a_frame_resets_the_connection(self, hosts: TwoHosts) -> None:
        """The peer must not take the partial frame for an orderly end."""
        client, server = await hosts.connected()
        while client.send_nowait(bytes(MIB)):
            pass
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await receive(server, 64 * MIB)

    async def test_close_during_send_resets_the_connection(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()

        async def send() -> None:
            with pytest.raises(ConnectionLost):
                await client.send([bytes(64 * MIB)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await client.aclose()
        with pytest.raises(ConnectionLost):
            await receive(server, 64 * MIB)

    async def test_concurrent_send_fails(self, hosts: TwoHosts) -> None:
        client, _server = await hosts.connected()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, [bytes(64 * MIB)])
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(trio.BusyResourceError):
                await client.send([b"x"])
            with pytest.raises(trio.BusyResourceError):
                client.send_nowait(b"x")
            nursery.cancel_scope.cancel()

    async def test_fast_peer_does_not_block_the_event_loop(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        turns = 0

        async def other_task() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_task)
            await trio.lowlevel.checkpoint()
            before = turns
            room = memoryview(bytearray(8))
            for _ in range(640):
                await client.send([b"x"])
                await server.receive_into(room)
            assert turns - before >= 10
            nursery.cancel_scope.cancel()


class TestSlices:
    @pytest.mark.parametrize("size", [0, 1, 4096, 130_000, 131_072, 2 * MIB + 5])
    async def test_file_slice_of_any_size_is_sent_between_buffers(
        self, hosts: TwoHosts, file: File, size: int
    ) -> None:
        client, server = await hosts.connected()
        parts: list[Buffer | FileSlice] = [b"head", FileSlice(file, 13, size), b"tail"]
        received = await send_and_receive(client, server, parts, size + 8)
        assert received == b"head" + file.read_at(13, size) + b"tail"

    async def test_many_file_slices_are_sent_in_one_frame(
        self, hosts: TwoHosts, file: File
    ) -> None:
        """Within 2 s: Linux delays the end of a short sendfile by 200 ms."""
        client, server = await hosts.connected()
        parts: list[Buffer | FileSlice] = []
        expected = b""
        for n in range(60):
            part = FileSlice(file, n * 1000, (n * 7919) % 200_000)
            parts += [b"%d:" % n, part]
            expected += b"%d:" % n + part.read()
        with trio.fail_after(2):
            received = await send_and_receive(client, server, parts, len(expected))
        assert received == expected

    async def test_slice_of_closed_and_removed_file_is_sent(
        self, hosts: TwoHosts, tmp_path: OsPath
    ) -> None:
        files = RealFiles(max_open=8)
        path = Path(tmp_path) / "segment"
        file = files.open(path, create=True)
        file.append_v([b"x" * 500_000])
        file.pin()
        file.close()
        files.remove(path)
        client, server = await hosts.connected()
        received = await send_and_receive(client, server, [FileSlice(file, 0, 500_000)], 500_000)
        assert received == b"x" * 500_000
        file.unpin()

    @pytest.mark.parametrize("size", [1000, 1 * MIB])
    async def test_slice_past_the_end_of_its_file_aborts_the_connection(
        self, hosts: TwoHosts, file: File, size: int
    ) -> None:
        """A follower truncates its log while a response is being sent: an error, not an endless loop."""
        client, server = await hosts.connected()
        file.truncate(size // 2)
        with pytest.raises(ConnectionLost):
            await send_and_ignore(client, server, [b"head", FileSlice(file, 0, size)])
        with pytest.raises(ConnectionLost):
            await client.send([b"x"])


class TestEnding:
    async def test_close_ends_the_stream_after_the_last_byte(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        await client.send([b"last words"])
        await client.aclose()
        await client.aclose()
        assert await receive(server, 100) == b"last words"
        assert await server.receive_into(memoryview(bytearray(1))) == 0

    @pytest.mark.parametrize("how", ["abort", "aclose"])
    async def test_close_by_peer_is_detected_before_receive(
        self, hosts: TwoHosts, how: str
    ) -> None:
        client, server = await hosts.connected()
        await client.send([b"last words"])
        await server.wait_readable()
        assert not server.is_hung_up
        if how == "abort":
            client.abort()
        else:
            await client.aclose()
        with trio.fail_after(TIMEOUT_SECONDS):
            while not server.is_hung_up:
                await trio.sleep(0.001)
        await server.aclose()
        assert not server.is_hung_up
        assert not client.is_hung_up

    async def test_closed_connection_cannot_be_used(self, hosts: TwoHosts) -> None:
        client, _ = await hosts.connected()
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.send([b"x"])
        with pytest.raises(ConnectionLost):
            client.send_nowait(b"x")
        with pytest.raises(ConnectionLost):
            await client.receive_into(memoryview(bytearray(1)))
        client.abort()

    @pytest.mark.parametrize("how", ["abort", "aclose"])
    async def test_closed_connection_cannot_be_used_after_receive(
        self, hosts: TwoHosts, how: str
    ) -> None:
        client, server = await hosts.connected()
        await server.send([b"x"])
        assert await client.receive_into(memoryview(bytearray(10))) == 1
        if how == "abort":
            client.abort()
        else:
            await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.receive_into(memoryview(bytearray(10)))

    async def test_abort_ends_the_connection_for_both_ends(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        client.abort()
        client.abort()
        with pytest.raises(ConnectionLost):
            await client.send([b"x"])
        with pytest.raises(ConnectionLost):
            await server.receive_into(memoryview(bytearray(1)))

    @pytest.mark.parametrize("how", ["abort", "aclose"])
    async def test_close_ends_waiting_receive_and_send(self, hosts: TwoHosts, how: str) -> None:
        client, _server = await hosts.connected()
        told = []

        async def wait_for_bytes() -> None:
            with pytest.raises(ConnectionLost):
                await client.receive_into(memoryview(bytearray(1)))
            told.append("receiver")

        async def wait_for_room() -> None:
            with pytest.raises(ConnectionLost):
                await client.send([bytes(64 * MIB)])
            told.append("sender")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_bytes)
            nursery.start_soon(wait_for_room)
            await trio.testing.wait_all_tasks_blocked(0.01)
            if how == "abort":
                client.abort()
            else:
                await client.aclose()
        assert sorted(told) == ["receiver", "sender"]

    async def test_send_to_closed_peer_fails(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        await server.aclose()
        with pytest.raises(ConnectionLost), trio.fail_after(5):
            await send_for_ever(client)

    async def test_frame_cancelled_before_its_first_byte_is_not_sent(self, hosts: TwoHosts) -> None:
        client, server = await hosts.connected()
        frame = b"f" * hosts.whole_frame_bytes
        sent = await fill(client, frame)
        while True:
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.send([frame])
            if scope.cancelled_caught:
                break
            sent += len(frame)  # the kernel had freed buffer space, so the whole frame was sent
        assert await receive(server, sent) == b"f" * sent
        await client.send([b"next"])
        assert await receive(server, 4) == b"next"

    async def test_frame_cancelled_after_its_first_byte_ends_the_connection(
        self, hosts: TwoHosts
    ) -> None:
        client, server = await hosts.connected()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, [bytes(64 * MIB)])
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        with pytest.raises(ConnectionLost):
            await client.send([b"another frame"])
        with pytest.raises(ConnectionLost):
            await receive(server, 64 * MIB)

    async def test_error_in_the_middle_of_a_frame_aborts_the_connection(
        self, hosts: TwoHosts, tmp_path: OsPath
    ) -> None:
        disk = VirtualDisk()
        files = VirtualFiles(disk)
        file = files.open(Path("/f"), create=True)
        file.append_v([bytes(MIB)])
        other = files.open(Path("/g"), create=True)
        other.append_v([bytes(MIB)])
        disk.fail("/g")
        client, server = await hosts.connected()
        parts: list[Buffer | FileSlice] = [FileSlice(file, 0, MIB), FileSlice(other, 0, MIB)]
        with pytest.raises(OSError, match="Input/output error"):
            await send_and_ignore(client, server, parts)
        with pytest.raises(ConnectionLost):
            await client.send([b"x"])


async def send_for_ever(connection: Connection) -> None:
    while True:
        await connection.send([b"x"])
        await trio.lowlevel.checkpoint()


async def fill(connection: Connection, frame: bytes) -> int:
    """Send frames until the next one would block; return the number of sent bytes."""
    sent = 0
    while True:
        with trio.move_on_after(0.01) as scope:
            await connection.send([frame])
        if scope.cancelled_caught:
            return sent
        sent += len(frame)


async def send_and_ignore(
    sender: Connection, receiver: Connection, parts: list[Buffer | FileSlice]
) -> None:
    async def take() -> None:
        room = memoryview(bytearray(MIB))
        try:
            while await receiver.receive_into(room):
                pass
        except ConnectionLost:
            pass

    failed: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        try:
            await sender.send(parts)
        except (OSError, ConnectionLost) as error:
            failed = error
    if failed:
        raise failed


class TestListening:
    async def test_port_0_selects_a_free_port(self, hosts: TwoHosts) -> None:
        listeners = await hosts.server.listen("", 0)
        ports = {listener.address.port for listener in listeners}
        assert len(ports) == 1
        assert ports.pop() > 0
        await close_all(listeners)

    async def test_every_address_accepts_connections(self, hosts: TwoHosts) -> None:
        listeners = await hosts.server.listen("", 0)
        client = await hosts.client.connect(hosts.name, listeners[0].address.port)
        assert client.peer.port == listeners[0].address.port
        await close_all(listeners)

    async def test_localhost_accepts_connections(self, hosts: TwoHosts) -> None:
        listeners = await hosts.server.listen("localhost", 0)
        client = await hosts.server.connect("localhost", listeners[0].address.port)
        assert client.peer.port == listeners[0].address.port
        await close_all(listeners)

    async def test_second_listen_on_a_port_fails(self, hosts: TwoHosts) -> None:
        [listener] = await hosts.server.listen(hosts.name, 0)
        with pytest.raises(OSError, match="in use"):
            await hosts.server.listen(hosts.name, listener.address.port)
        await listener.aclose()

    async def test_port_of_closed_listener_is_free(self, hosts: TwoHosts) -> None:
        [listener] = await hosts.server.listen(hosts.name, 0)
        port = listener.address.port
        client = await hosts.client.connect(hosts.name, port)
        server = await listener.accept()
        await server.aclose()
        await client.aclose()
        await listener.aclose()
        [again] = await hosts.server.listen(hosts.name, port)
        assert again.address.port == port
        await again.aclose()

    async def test_connect_without_listener_is_refused(self, hosts: TwoHosts) -> None:
        [listener] = await hosts.server.listen(hosts.name, 0)
        await listener.aclose()
        await listener.aclose()
        with pytest.raises(ConnectionRefused):
            await hosts.client.connect(hosts.name, listener.address.port)

    async def test_cancelled_listen_releases_its_port(self, hosts: TwoHosts) -> None:
        [listener] = await hosts.server.listen(hosts.name, 0)
        port = listener.address.port
        await listener.aclose()
        with trio.CancelScope() as scope:
            scope.cancel()
            [listener] = await hosts.server.listen(hosts.name, port)
            await listener.aclose()
        [listener] = await hosts.server.listen(hosts.name, port)
        await listener.aclose()

    async def test_close_of_listener_ends_waiting_accept(self, hosts: TwoHosts) -> None:
        [listener] = await hosts.server.listen(hosts.name, 0)

        async def wait() -> None:
            with pytest.raises(ConnectionLost):
                await listener.accept()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await listener.aclose()
        with pytest.raises(ConnectionLost):
            await listener.accept()

    async def test_listener_accepts_many_connections_concurrently(self, hosts: TwoHosts) -> None:
        [listener] = await hosts.server.listen(hosts.name, 0)
        seen = []

        async def call(n: int) -> None:
            client = await hosts.client.connect(hosts.name, listener.address.port)
            await client.send([bytes([n])])
            assert await receive(client, 1) == bytes([n])

        async with trio.open_nursery() as nursery:
            for n in range(50):
                nursery.start_soon(call, n)
            for _ in range(50):
                connection = await listener.accept()
                said = await receive(connection, 1)
                seen.append(said[0])
                await connection.send([said])
        assert sorted(seen) == list(range(50))
        await listener.aclose()


async def close_all(listeners: list[Listener]) -> None:
    for listener in listeners:
        await listener.aclose()


class Words:
    """A `Receiver` that ends after the bytes that it expects, or after other bytes."""

    def __init__(self, wanted: bytes, room: int = 4) -> None:
        self.wanted = wanted
        self.came = b""
        self.is_over = False
        self.turns = 0
        self._room = memoryview(bytearray(room))

    def free_space(self) -> memoryview:
        return self._room

    def take(self, size_bytes: int) -> bool:
        self.is_over = size_bytes == 0
        self.came += self._room[:size_bytes]
        return not self.is_over and self.came != self.wanted

    def end_turn(self) -> bool:
        self.turns += 1
        return True


class Unhappy(Words):
    def take(self, size_bytes: int) -> bool:
        raise KeyError("unhappy")


async def test_host_has_a_name(hosts: TwoHosts) -> None:
    assert await hosts.server.own_name()


class TestSelecting:
    @pytest.fixture
    async def selector(self, hosts: TwoHosts) -> AsyncIterator[Selector]:
        made = hosts.server.selector()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()

    async def test_selector_delivers_bytes_to_their_receiver(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        pairs = [await hosts.connected() for _ in range(20)]
        words = [Words(b"what came for %d" % number) for number in range(20)]
        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                for (_, server), receiver in zip(pairs, words, strict=True):
                    nursery.start_soon(selector.receive, server, receiver)
                for (client, _), receiver in zip(pairs, words, strict=True):
                    nursery.start_soon(client.send, [receiver.wanted])
        assert [receiver.came for receiver in words] == [receiver.wanted for receiver in words]
        assert all(receiver.turns >= 2 for receiver in words)

    async def test_selector_delivers_the_end_of_the_stream(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        client, server = await hosts.connected()
        receiver = Words(b"never")
        await client.send([b"all"])
        await client.aclose()
        with trio.fail_after(TIMEOUT_SECONDS):
            await selector.receive(server, receiver)
        assert (receiver.came, receiver.is_over) == (b"all", True)

    async def test_bytes_after_selector_receive_go_to_the_next_receiver(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        client, server = await hosts.connected()
        with trio.fail_after(TIMEOUT_SECONDS):
            for word in (b"one", b"two"):
                await client.send([word])
                await selector.receive(server, Words(word, room=3))
                await client.send([word])
                assert await receive(server, 3) == word

    async def test_cancelled_selector_receive_takes_no_bytes(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        client, server = await hosts.connected()
        receiver = Words(b"never")
        with trio.move_on_after(0):
            await selector.receive(server, receiver)
        await client.send([b"after"])
        assert await receive(server, 5) == b"after"
        assert not receiver.came

    async def test_exception_of_receiver_is_raised_and_others_continue(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        client, server = await hosts.connected()
        other_client, other_server = await hosts.connected()
        await client.send([b"x"])
        with trio.fail_after(TIMEOUT_SECONDS), pytest.raises(KeyError, match="unhappy"):
            await selector.receive(server, Unhappy(b""))
        await other_client.send([b"fine"])
        with trio.fail_after(TIMEOUT_SECONDS):
            await selector.receive(other_server, Words(b"fine"))

    async def test_selector_receive_on_lost_connection_fails(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        client, server = await hosts.connected()
        client.abort()
        with trio.fail_after(TIMEOUT_SECONDS), pytest.raises(ConnectionLost):
            await selector.receive(server, Words(b"never"))

    async def test_selector_receive_on_aborted_connection_fails(
        self, hosts: TwoHosts, selector: Selector
    ) -> None:
        _client, server = await hosts.connected()
        with trio.fail_after(TIMEOUT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lose, selector, server)
                await trio.testing.wait_all_tasks_blocked()
                server.abort()
            with pytest.raises(ConnectionLost):
                await selector.receive(server, Words(b"never"))

    async def _lose(self, selector: Selector, connection: Connection) -> None:
        with pytest.raises(ConnectionLost):
            await selector.receive(connection, Words(b"never"))
