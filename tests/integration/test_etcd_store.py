"""The etcd store beyond what every store does: elections, fencing, commits that are sent again, following, space."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kvstore.etcd import etcd_pb2 as pb

from kvstore.common.errors import FencedError, StoreError
from kvstore.master.metadata.etcd import EtcdStore, open_uri
from kvstore.master.metadata.etcd_client import EtcdClient
from kvstore.master.metadata.etcd_election import Election
from kvstore.master.metadata.replicated import RevisionGoneError, Update
from kvstore.master.metadata.store import COMMIT_BYTES_MAX, OP_OVERHEAD_BYTES, Put, SpaceLevel
from support.etcd_server import Etcd, own_prefix, shared_etcd
from support.master_peers import until
from support.tcp_proxy import TO_CLIENT, TO_SERVER, TcpProxy

TIMEOUT_S = 15.0
OpenStore = Callable[..., "asyncio.Future[EtcdStore]"]


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """await open_store(uri=..., **options): by default on the shared server, under this test's prefix."""
    stores: list[EtcdStore] = []

    async def new(uri: str = "", **options: object) -> EtcdStore:
        store = open_uri(uri or shared_etcd().uri(own_prefix(tmp_path), **options))
        await store.open()
        stores.append(store)
        return store

    yield new
    for store in stores:
        await store.close()


@pytest.fixture
async def client() -> AsyncIterator[EtcdClient]:
    client = EtcdClient([shared_etcd().members[0].endpoint])
    yield client
    await client.close()


async def take(store: EtcdStore, revision: int, count: int) -> list[Update]:
    """The next `count` updates after `revision` that hold something."""
    updates: list[Update] = []

    async def run() -> None:
        async for update in store.follow(revision):
            if update.changes:
                updates.append(update)
            if len(updates) == count:
                return

    await asyncio.wait_for(run(), TIMEOUT_S)
    return updates


# ---- election and fence ------------------------------------------------------------------------------------


async def test_a_leader_whose_lease_ended_unnoticed_is_refused_by_etcd_itself(
    open_store: OpenStore, client: EtcdClient
) -> None:
    old, new = await open_store(ttl_s=30), await open_store()
    tenure = await old.campaign()
    await old.commit((Put(b"k", b"old"),), tenure.fence)
    await client.lease_revoke(tenure.lease_id)  # type: ignore[attr-defined]
    assert not tenure.ended.is_set()
    with pytest.raises(FencedError):
        await old.commit((Put(b"k", b"late"),), tenure.fence)
    assert tenure.ended.is_set()
    later = await asyncio.wait_for(new.campaign(), TIMEOUT_S)
    assert later.fence.term > tenure.fence.term
    await new.commit((Put(b"k", b"new"),), later.fence)
    with pytest.raises(FencedError):
        await old.commit((Put(b"k", b"later still"),), tenure.fence)
    assert await new.get(b"k") == b"new"


async def test_a_tenure_ends_by_itself_when_its_lease_is_gone_and_lasts_while_it_is_renewed(
    open_store: OpenStore, client: EtcdClient
) -> None:
    store = await open_store(ttl_s=2)
    tenure = await store.campaign()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(tenure.ended.wait(), 3.0)  # longer than the lease: it is being renewed
    await store.commit((Put(b"k", b"v"),), tenure.fence)
    await client.lease_revoke(tenure.lease_id)  # type: ignore[attr-defined]
    await asyncio.wait_for(tenure.ended.wait(), TIMEOUT_S)
    assert "lease" in tenure.why


async def test_one_of_several_candidates_is_elected_and_the_next_one_when_it_resigns(
    open_store: OpenStore,
) -> None:
    stores = [await open_store(ttl_s=30) for _ in range(3)]
    for number, store in enumerate(stores):
        store.announce(f"master-{number}:7441")
    campaigns = {asyncio.ensure_future(store.campaign()): number for number, store in enumerate(stores)}
    terms = []
    while campaigns:
        # The lease is far longer than this: only resigning makes room.
        done, waiting = await asyncio.wait(campaigns, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        number = campaigns.pop(done.pop())
        assert not any(campaign.done() for campaign in waiting)
        assert await stores[0].leader_address() == f"master-{number}:7441"
        assert stores[number]._tenure is not None
        terms.append(stores[number]._tenure.fence.term)
        await stores[number].resign()
    assert terms == sorted(set(terms))
    assert await stores[0].leader_address() is None


async def test_clusters_of_different_prefixes_do_not_see_each_other(
    open_store: OpenStore, tmp_path: Path
) -> None:
    ours = await open_store()
    theirs = await open_store(shared_etcd().uri(own_prefix(tmp_path) + "-too"))
    fences = [(await asyncio.wait_for(store.campaign(), TIMEOUT_S)).fence for store in (ours, theirs)]
    await ours.commit((Put(b"k1", b"ours"),), fences[0])
    await theirs.commit((Put(b"k2", b"theirs"),), fences[1])
    assert [page async for page in ours.scan(b"k")] == [[(b"k1", b"ours")]]
    assert [page async for page in theirs.scan(b"k")] == [[(b"k2", b"theirs")]]


async def test_a_tenure_that_has_ended_here_writes_nothing_though_its_lease_goes_on(
    open_store: OpenStore,
) -> None:
    store = await open_store(ttl_s=30)
    tenure = await store.campaign()
    tenure.end("as the test says")
    with pytest.raises(FencedError, match="as the test says"):
        await store.commit((Put(b"k", b"late"),), tenure.fence)
    assert await store.get(b"k") is None


async def test_what_an_ended_tenure_still_sends_is_refused_by_etcd(
    open_store: OpenStore, client: EtcdClient
) -> None:
    """The check here is a courtesy; etcd's own comparison is what holds."""
    old, new = await open_store(ttl_s=30), await open_store(ttl_s=30)
    tenure = await old.campaign()
    await client.lease_revoke(tenure.lease_id)  # type: ignore[attr-defined]
    later = await asyncio.wait_for(new.campaign(), TIMEOUT_S)
    await new.commit((Put(b"k", b"new"),), later.fence)
    with pytest.raises(FencedError):
        await old._commit((Put(b"k", b"late"),), tenure)  # type: ignore[arg-type]
    assert await new.get(b"k") == b"new"


@pytest.mark.parametrize("slow", ["grant", "renewal"])
async def test_a_lease_is_counted_from_when_it_was_asked_for_not_from_the_answer(
    slow: str, tmp_path: Path
) -> None:
    """etcd may have begun to count long before the answer is here."""
    ttl_s = 3.0
    asked_at: list[float] = []

    class Slow(EtcdClient):
        async def lease_grant(self, ttl_s: float) -> tuple[int, float]:
            if slow == "grant":
                asked_at.append(time.monotonic())
            answer = await super().lease_grant(ttl_s)
            await asyncio.sleep(2.0 if slow == "grant" else 0.0)
            return answer

        async def lease_keep_alive(self, lease_id: int, timeout_s: float) -> float:
            if slow == "renewal" and not asked_at:
                asked_at.append(time.monotonic())
                left_s = await super().lease_keep_alive(lease_id, timeout_s)
                await asyncio.sleep(1.5)
                return left_s
            await asyncio.sleep(timeout_s)  # etcd is away from now on
            raise StoreError("no answer")

    client = Slow([shared_etcd().members[0].endpoint])
    election = Election(client, f"{own_prefix(tmp_path)}/".encode(), ttl_s)
    try:
        tenure = await asyncio.wait_for(election.campaign(), TIMEOUT_S)
        await asyncio.wait_for(tenure.ended.wait(), TIMEOUT_S)
        assert time.monotonic() - asked_at[0] < ttl_s + 1.0
        await election.resign()
    finally:
        await client.close()


# ---- commits that are sent again ---------------------------------------------------------------------------


async def test_a_commit_whose_answer_is_lost_is_carried_out_once(
    open_store: OpenStore, client: EtcdClient, tmp_path: Path
) -> None:
    server = shared_etcd().members[0]
    proxy = TcpProxy(server.client_port)
    prefix = own_prefix(tmp_path)
    try:
        # Requests go by the proxy first; by the direct way when that fails.
        store = await open_store(f"etcd://127.0.0.1:{proxy.port},{server.endpoint}/{prefix}?ttl_s=30")
        fence = await store.acquire()
        await store.commit((Put(b"k", b"1"),), fence)
        proxy.stall(TO_CLIENT, 0)
        await store.commit((Put(b"k", b"2"), Put(b"once", b"x")), fence)
        kv, _ = await client.get(f"/{prefix}/once".encode())
        assert kv is not None and kv.version == 1
        await store.commit((Put(b"k", b"3"),), fence)
        assert await store.get(b"k") == b"3"
    finally:
        proxy.close()


async def test_an_attempt_that_was_held_up_changes_nothing_when_it_arrives_late(
    open_store: OpenStore, tmp_path: Path
) -> None:
    server = shared_etcd().members[0]
    proxy = TcpProxy(server.client_port)
    try:
        uri = f"etcd://127.0.0.1:{proxy.port},{server.endpoint}/{own_prefix(tmp_path)}?ttl_s=30"
        store = await open_store(uri)
        fence = await store.acquire()
        await store.commit((Put(b"k", b"1"),), fence)
        proxy.stall(TO_SERVER, 0)
        await store.commit((Put(b"k", b"2"),), fence)
        assert proxy.stalled.is_set()
        await store.commit((Put(b"k", b"3"),), fence)
        revision, _ = await store.revisions()
        proxy.release()
        for number in range(20):
            await store.commit((Put(b"other", b"%d" % number),), fence)
        assert await store.get(b"k") == b"3"
        assert all(
            change.key != b"k" for update in await take(store, revision, 20) for change in update.changes
        )
    finally:
        proxy.close()


async def test_an_unreachable_etcd_is_named_and_costs_no_more_than_the_time_out(
    open_store: OpenStore,
) -> None:
    store = open_uri("etcd://127.0.0.1:1,127.0.0.1:2/x?commit_timeout_s=0.5")
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        await store.open()
    assert time.monotonic() - started < 20
    await store.close()


# ---- following ---------------------------------------------------------------------------------------------


async def test_a_follower_sees_each_commit_whole_and_in_order(open_store: OpenStore) -> None:
    leader, follower = await open_store(), await open_store()
    fence = await leader.acquire()
    start, _ = await follower.revisions()
    big = bytes(COMMIT_BYTES_MAX // 2 - 2 * OP_OVERHEAD_BYTES)
    for number in range(6):
        await leader.commit((Put(b"a%d" % number, big), Put(b"b%d" % number, big)), fence)
    updates = await take(follower, start, 6)
    assert [[c.key for c in u.changes] for u in updates] == [[b"a%d" % n, b"b%d" % n] for n in range(6)]
    assert all(c.value == big for u in updates for c in u.changes)
    # From the middle on: what came before does not come again.
    assert [u.changes[0].key for u in await take(follower, updates[2].revision, 3)] == [b"a3", b"a4", b"a5"]


async def test_following_from_a_compacted_revision_is_refused(
    open_store: OpenStore, client: EtcdClient
) -> None:
    store = await open_store()
    fence = await store.acquire()
    start, _ = await store.revisions()
    for number in range(5):
        await store.commit((Put(b"k", b"%d" % number),), fence)
    newest, _ = await store.revisions()
    await client.compact(newest)
    with pytest.raises(RevisionGoneError):
        await take(store, start, 1)
    with pytest.raises(RevisionGoneError):
        await store.at(start).get(b"k")
    await store.commit((Put(b"k", b"last"),), fence)
    (update,) = await take(store, newest, 1)
    assert update.changes[0].value == b"last"


async def test_following_and_committing_go_on_without_gap_when_members_die_and_hang(
    open_store: OpenStore, tmp_path: Path
) -> None:
    etcd = Etcd(tmp_path / "etcd", members=3)
    try:
        await asyncio.to_thread(etcd.start)
        leader, follower = await open_store(etcd.uri()), await open_store(etcd.uri())
        seen: list[bytes] = []
        start, _ = await follower.revisions()

        async def follow() -> None:
            async for update in follower.follow(start):
                seen.extend(change.key for change in update.changes)

        following = asyncio.ensure_future(follow())
        written: list[bytes] = []

        async def write(count: int) -> None:
            """In as many terms as it takes: a long fault may cost the lease."""
            done = 0
            while done < count:
                try:
                    fence = await leader.acquire()
                    while done < count:
                        key = b"k%04d" % len(written)
                        await leader.commit((Put(key, b"v"),), fence)
                        written.append(key)
                        done += 1
                except StoreError:
                    await asyncio.sleep(0.1)

        await asyncio.wait_for(write(20), TIMEOUT_S)
        etcd.members[0].pause()
        await asyncio.wait_for(write(20), 2 * TIMEOUT_S)
        etcd.members[0].resume()
        etcd.members[1].kill()
        await asyncio.wait_for(write(20), 2 * TIMEOUT_S)
        await until(lambda: len(set(seen)) == len(written), "the follower has seen everything", TIMEOUT_S)
        following.cancel()
        # A commit with an unknown outcome may be repeated in a later term: the same key, never out of order.
        assert sorted(set(seen)) == written
        assert seen == sorted(seen)
    finally:
        etcd.close()


class CuttingProxy(TcpProxy):
    """Cuts all connections on demand; new ones are welcome."""

    def cut(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


async def test_a_revision_that_comes_in_fragments_arrives_whole(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """etcd cuts what it sends a watcher into messages of its request limit, in the middle of a revision too."""
    etcd = Etcd(tmp_path / "etcd", options=("--max-request-bytes=1048576",))
    try:
        await asyncio.to_thread(etcd.start)
        leader, follower = await open_store(etcd.uri()), await open_store(etcd.uri())
        fence = await leader.acquire()
        start, _ = await follower.revisions()
        values = [bytes([number]) * 400_000 for number in (1, 2)]
        commits = 8
        for number in range(commits):
            ops = tuple(Put(b"%d/%d" % (number, half), value) for half, value in enumerate(values))
            await leader.commit(ops, fence)
        # Behind all of them, so that they come as one backlog, in pieces.
        updates = await take(follower, start, commits)
        fragments = 0
        client = EtcdClient([etcd.members[0].endpoint])
        _, call = client.open_watch()
        request = pb.WatchCreateRequest(key=b"/", range_end=b"0", start_revision=start + 1, fragment=True)
        await call.write(pb.WatchRequest(create_request=request))
        events = 0
        while events < 3 * commits:  # two values and the marker
            reply = await asyncio.wait_for(call.read(), TIMEOUT_S)
            fragments += bool(reply.fragment)
            events += len(reply.events)
        call.cancel()
        await client.close()
        assert fragments > 0, "nothing was cut: the test tells nothing"
        assert [[change.key for change in update.changes] for update in updates] == [
            [b"%d/0" % number, b"%d/1" % number] for number in range(commits)
        ]
        assert all([change.value for change in update.changes] == values for update in updates)
    finally:
        etcd.close()


async def test_a_follower_whose_connection_is_cut_between_two_commits_of_a_term_misses_none(
    open_store: OpenStore, tmp_path: Path
) -> None:
    server = shared_etcd().members[0]
    prefix = own_prefix(tmp_path)
    proxy = CuttingProxy(server.client_port)
    try:
        leader = await open_store(f"etcd://{server.endpoint}/{prefix}")
        follower = await open_store(f"etcd://127.0.0.1:{proxy.port}/{prefix}")
        fence = await leader.acquire()
        start, _ = await follower.revisions()
        seen: list[bytes] = []

        async def follow() -> None:
            async for update in follower.follow(start):
                seen.extend(change.key for change in update.changes)

        following = asyncio.ensure_future(follow())
        written = []
        for number in range(12):
            key = b"k%02d" % number
            await leader.commit((Put(key, b"v"),), fence)
            written.append(key)
            if number % 3 == 0:
                await until(lambda: seen == written, "it follows", TIMEOUT_S)
                proxy.cut()
                # Committed while nobody listens.
                key = b"k%02d+" % number
                await leader.commit((Put(key, b"v"),), fence)
                written.append(key)
        await until(lambda: len(seen) >= len(written), "it has caught up", TIMEOUT_S)
        following.cancel()
        assert seen == written
    finally:
        proxy.close()


# ---- space -------------------------------------------------------------------------------------------------


async def test_a_filling_etcd_is_tight_then_full_and_its_alarm_is_seen(
    open_store: OpenStore, tmp_path: Path
) -> None:
    quota_bytes = 32 << 20
    # Its sizes are those of the last batch written to its file.
    options = (f"--quota-backend-bytes={quota_bytes}", "--backend-batch-limit=1")
    etcd = Etcd(tmp_path / "etcd", options=options)
    try:
        await asyncio.to_thread(etcd.start)
        store = await open_store(etcd.uri(quota_bytes=quota_bytes))
        fence = await store.acquire()
        said = [await store.space()]
        value = bytes(COMMIT_BYTES_MAX - 2 * OP_OVERHEAD_BYTES)
        refused = None
        for number in range(80):
            try:
                await store.commit((Put(b"k%d" % number, value),), fence)
            except StoreError as error:
                refused = error
                break
            said.append(await store.space())
        levels = [space.level for space in said]
        assert levels[0] is SpaceLevel.NORMAL
        # By when each is first said: near a threshold a level may come and go, since etcd reuses what it frees.
        assert list(dict.fromkeys(levels)) == sorted(SpaceLevel), said
        assert refused is not None and "docs/etcd.md" in str(refused)
        full = await store.space()
        assert full.level is SpaceLevel.FULL and "NOSPACE" in full.text
    finally:
        etcd.close()


async def test_no_two_tenures_share_a_term_though_one_begins_and_ends_while_the_other_asks(
    client: EtcdClient, tmp_path: Path
) -> None:
    prefix = f"{own_prefix(tmp_path)}/".encode()
    other = Election(client, prefix, 5.0)
    terms: list[int] = []

    class Slow(EtcdClient):
        """Between what it reads and what it writes, the other one is elected and resigns."""

        async def txn(self, request: Any) -> Any:
            if not terms:
                tenure = await other.campaign()
                terms.append(tenure.fence.term)
                await other.resign()
            return await super().txn(request)

    slow = Slow([shared_etcd().members[0].endpoint])
    election = Election(slow, prefix, 5.0)
    try:
        tenure = await asyncio.wait_for(election.campaign(), TIMEOUT_S)
        assert terms and tenure.fence.term > terms[0]
        await election.resign()
    finally:
        await slow.close()
