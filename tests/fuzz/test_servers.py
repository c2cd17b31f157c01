"""A real master and a real segment whose ports are fed with what nobody means: they stay alive, serve whoever is honest, and grow no
larger than they may."""

from __future__ import annotations

import contextlib
import queue
import random
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvstore.v1 import admin_pb2, admin_pb2_grpc, control_pb2_grpc
from kvstore.v1 import control_pb2 as pb

import kvstore_client
from kvstore_client.protocol import Header, HelloRequest, Op, Role, request_frame
from support.fuzzing import NUMBERS, fuzzed, golden_bodies, golden_frames, hostile
from support.processes import Cluster, ServerProcess
from support.running_cluster import running_cluster
from support.waiting import wait_until

# What a server's resident memory may have gained after all that this file sends, which is far less.
GROWTH_BYTES_MAX = 192 << 20
GREETING = {
    role: Header(Op.HELLO, 1, len(body)).encode() + body
    for role in Role
    for body in [HelloRequest(role, name="fuzz").encode()]
}
FRAMES = golden_frames("request", "notice")
HTTP = (
    b"GET /metrics HTTP/1.1\r\n\r\n",
    b"GET /healthz?x HTTP/1.0\r\nA: b\r\n\r\n",
    b"POST / HTTP/1.1\r\n\r\n",
)


def resident_bytes(process: ServerProcess) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def say(connection: socket.socket, data: bytes) -> None:
    """Says it, and takes what is answered until the other end closes or has nothing to add."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass


def say_by_tcp(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        say(connection, data)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("fuzzed"), capacity="32MiB") as cluster:
        before = {
            process: resident_bytes(process) for process in (cluster.master, cluster.segments["segment"])
        }
        serve_the_honest(cluster)
        yield cluster
        for process, had in before.items():
            assert resident_bytes(process) - had < GROWTH_BYTES_MAX, cluster.logs()


def serve_the_honest(cluster: Cluster) -> None:
    """Both processes are those of the beginning; pages are put, found and got."""
    for process in (cluster.master, cluster.segments["segment"]):
        assert process.process.poll() is None, process.log()
        for line in process.log_path.read_text(errors="replace").splitlines():
            assert not re.search(r"request_failed|attach_stream_failed|Traceback|internal", line), line
    value = random.Random(1).randbytes(5000)
    with kvstore_client.Client(cluster.masters, deadline_ms=20_000) as client:
        objects = client.namespace("honest")
        # A put may go to a segment that is none, and that nobody knows of as gone yet.
        wait_until(lambda: objects.put("a page", value), "a page is stored", 30.0)
        assert objects.get("a page") == value


@st.composite
def conversations(draw: st.DrawFn, roles: tuple[Role, ...]) -> bytes:
    """A greeting mostly, then a few frames whose headers fit their bodies, mostly."""
    said = draw(st.sampled_from([GREETING[role] for role in (*roles, *roles)] + [b""]))
    for _ in range(draw(st.integers(0, 4))):
        frame = draw(hostile(FRAMES))
        if len(frame) >= 24 and draw(st.integers(0, 3)) > 0:
            payload = draw(st.sampled_from((0, 0, struct.unpack_from("<Q", frame, 16)[0] % 4096)))
            frame = Header(frame[5], 2, len(frame) - 24, payload).encode() + frame[24:] + bytes(payload)
        said += frame
    return said


def test_the_directory_port_of_a_master_survives_any_bytes(cluster: Cluster) -> None:
    @given(conversations((Role.CLIENT, Role.SEGMENT, Role.TOOL)))
    @fuzzed(150)
    def check(said: bytes) -> None:
        say_by_tcp(cluster.master_ports["directory_port"], said)

    check()
    serve_the_honest(cluster)


def test_the_data_port_of_a_segment_survives_any_bytes(cluster: Cluster) -> None:
    listening = cluster.segments["segment"].wait_event("listening")

    @given(conversations((Role.CLIENT, Role.TOOL)), st.booleans())
    @fuzzed(150)
    def check(said: bytes, local: bool) -> None:
        if not local:
            say_by_tcp(listening["port"], said)
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(listening["unix_path"])
            say(connection, said)

    check()
    serve_the_honest(cluster)


def test_the_status_ports_survive_any_bytes(cluster: Cluster) -> None:
    ports = [
        cluster.master_ports["http_port"],
        cluster.segments["segment"].wait_event("listening")["http_port"],
    ]

    @given(st.sampled_from(ports), hostile(HTTP))
    @fuzzed(60)
    def check(port: int, said: bytes) -> None:
        say_by_tcp(port, said)

    check()
    serve_the_honest(cluster)


def test_the_control_port_of_a_master_survives_any_bytes(cluster: Cluster) -> None:
    @given(hostile([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)]))
    @fuzzed(20)
    def check(said: bytes) -> None:
        say_by_tcp(cluster.master_ports["control_port"], said)

    check()
    serve_the_honest(cluster)


IDS = st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=17))
U64 = st.sampled_from([n for n in NUMBERS if n < 1 << 64])
REGISTERS = st.builds(
    pb.Register,
    protocol_version=st.sampled_from((2, 2, 2, 0, 99)),
    segment_id=IDS,
    pool_id=IDS,
    host=st.one_of(st.just("127.0.0.1"), st.text(max_size=300)),
    tcp_port=st.sampled_from((1, 0, 65_535, 65_536, (1 << 32) - 1)),
    unix_path=st.text(max_size=120),
    capacity_bytes=U64,
    last_seq=U64,
    oldest_kept_seq=U64,
    software_version=st.text(max_size=100),
    makes_link=st.booleans(),
    expected_cluster_id=st.sampled_from((b"", b"", b"x", bytes(16))),
    takes_questions=st.booleans(),
)
GROUPS = [body[24:] for body in golden_bodies("JournalMessage")]
FIRST_AND_LAST = st.one_of(
    U64.flatmap(lambda n: st.tuples(st.just(n), st.just((n + 3) % (1 << 64)))), st.tuples(U64, U64)
)
QUESTIONS = st.one_of(st.integers(0, 3), U64)
KEPT = st.builds(pb.Kept, question=QUESTIONS, kept=U64, refused=U64, missing=U64)
RETENTION_TOLD = st.builds(
    pb.RetentionTold,
    question=QUESTIONS,
    namespace_bytes_max=U64,
    namespaces=st.lists(
        st.builds(
            pb.NamespaceRetention,
            id=st.binary(max_size=9),
            retained_bytes=U64,
            retained_objects=U64,
            demoted_objects=U64,
            retentions_refused=U64,
            demotions_heeded=st.booleans(),
        ),
        max_size=3,
    ),
)
MESSAGES = st.one_of(
    st.builds(
        lambda seqs, groups: pb.SegmentMessage(
            journal=pb.JournalBatch(first_seq=seqs[0], last_seq=seqs[1], groups=groups)
        ),
        FIRST_AND_LAST,
        hostile(GROUPS),
    ),
    st.builds(
        lambda seq, groups, first, last: pb.SegmentMessage(
            inventory=pb.InventoryChunk(last_seq=seq, groups=groups, first=first, last=last)
        ),
        U64,
        hostile(GROUPS),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(lambda barrier: pb.SegmentMessage(retired=pb.Retired(barrier=barrier)), U64),
    st.builds(lambda reason: pb.SegmentMessage(leaving=pb.Leaving(reason=reason)), st.text(max_size=40)),
    st.builds(lambda reason: pb.SegmentMessage(away=pb.Away(reason=reason)), st.text(max_size=40)),
    st.builds(lambda kept: pb.SegmentMessage(kept=kept), KEPT),
    st.builds(lambda told: pb.SegmentMessage(retention_told=told), RETENTION_TOLD),
    st.builds(lambda register: pb.SegmentMessage(register=register), REGISTERS),
    st.just(pb.SegmentMessage()),
)
HEARTBEATS = st.builds(
    pb.HeartbeatRequest,
    segment_id=IDS,
    pool_id=IDS,
    used_bytes=U64,
    object_count=U64,
    pinned_bytes=U64,
    quarantined_slots=U64,
    digest_mismatches=U64,
    evicted_objects=U64,
    limits=st.lists(st.builds(pb.LimitUse, used=U64, limit=U64, refused=U64), max_size=20),
)


def test_the_control_service_of_a_master_survives_segments_that_say_anything(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.control) as channel:
        stub = control_pb2_grpc.ControlStub(channel)

        @given(REGISTERS, st.lists(MESSAGES, max_size=4), HEARTBEATS, st.booleans())
        @fuzzed(100)
        def check(
            register: pb.Register,
            messages: list[pb.SegmentMessage],
            heartbeat: pb.HeartbeatRequest,
            registers: bool,
        ) -> None:
            said = [pb.SegmentMessage(register=register)] if registers else []
            with contextlib.suppress(grpc.RpcError):
                for _ in stub.Attach(iter([*said, *messages]), timeout=20):
                    pass
            heartbeat.segment_id = register.segment_id
            stub.Heartbeat(heartbeat, timeout=20)

        check()
    # Those who have never made their link, or have left, take no pages from honest clients.
    serve_the_honest(cluster)


def test_a_link_that_says_anything_after_an_honest_registration_harms_nobody_else(cluster: Cluster) -> None:
    link_frames = [frame for frame in FRAMES if frame[5] in (Op.JOURNAL, Op.INVENTORY, Op.HEARTBEAT)]
    numbers = iter(range(1, 1 << 20))
    with grpc.insecure_channel(cluster.control) as channel:
        stub = control_pb2_grpc.ControlStub(channel)

        @given(st.lists(hostile(link_frames), min_size=1, max_size=4))
        @fuzzed(60)
        def check(frames: list[bytes]) -> None:
            pool = b"pool" + struct.pack("<Q", next(numbers)) + bytes(4)
            register = pb.Register(
                protocol_version=2,
                segment_id=b"a segment, fuzz.",
                pool_id=pool,
                host="127.0.0.1",
                tcp_port=1,
                capacity_bytes=1 << 20,
                makes_link=True,
            )
            waiting: list[pb.SegmentMessage] = [pb.SegmentMessage(register=register)]
            stream = stub.Attach(iter(waiting), timeout=20)
            with contextlib.suppress(grpc.RpcError, StopIteration):
                registered = next(stream).registered
                said = GREETING[Role.SEGMENT] + request_frame(Op.LINK, 2, registered.link_token)
                say_by_tcp(registered.link_port, said + b"".join(frames))
            stream.cancel()

        check()
    serve_the_honest(cluster)


ANSWERS = st.one_of(
    st.builds(lambda kept: pb.SegmentMessage(kept=kept), KEPT),
    st.builds(lambda told: pb.SegmentMessage(retention_told=told), RETENTION_TOLD),
)


def test_operators_get_their_answer_whatever_a_segment_answers(cluster: Cluster) -> None:
    numbers = iter(range(1, 1 << 20))
    with grpc.insecure_channel(cluster.control) as channel:
        stub, admin = control_pb2_grpc.ControlStub(channel), admin_pb2_grpc.AdminStub(channel)

        @given(ANSWERS, st.booleans())
        @fuzzed(40)
        def check(answer: pb.SegmentMessage, keeps: bool) -> None:
            said: queue.SimpleQueue[pb.SegmentMessage | None] = queue.SimpleQueue()
            register = pb.Register(
                protocol_version=2,
                segment_id=b"one that answers",
                pool_id=b"pool" + struct.pack("<Q", next(numbers)) + bytes(4),
                host="127.0.0.1",
                tcp_port=1,
                capacity_bytes=1 << 20,
                makes_link=True,
                takes_questions=True,
            )
            said.put(pb.SegmentMessage(register=register))
            stream = stub.Attach(iter(said.get, None), timeout=20)
            (namespace, *_) = next(stream).registered.current_namespaces
            if keeps:
                wish = admin_pb2.KeepObjectsRequest(id=namespace, all=True, intent=1)
                asked = admin.KeepObjects.future(wish, timeout=20)
            else:
                asked = admin.GetRetention.future(admin_pb2.GetRetentionRequest(), timeout=20)
            question = next(m for m in stream if m.WhichOneof("body") in ("keep_objects", "tell_retention"))
            answered = getattr(answer, answer.WhichOneof("body"))
            answered.question = getattr(question, question.WhichOneof("body")).question
            for told in answer.retention_told.namespaces if answer.HasField("retention_told") else ():
                told.id = namespace
            said.put(answer)
            reply = asked.result()
            if keeps == answer.HasField("retention_told"):
                assert "127.0.0.1:1" in [each.address for each in reply.silent], "it did not answer this"
            said.put(None)
            stream.cancel()

        check()
    serve_the_honest(cluster)
