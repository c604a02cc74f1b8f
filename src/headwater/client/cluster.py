"""The bucket as a whole: requests that find the present node of their vbucket.

While a vbucket moves there are moments in which no node has it, or the map still names the old node. The client waits
in both cases, with growing delays, up to the deadline of the operation; the error then has the nodes, the number of
attempts and the time.
"""

from __future__ import annotations

from collections.abc import Collection

from headwater.client.durability import check_granted, within
from headwater.client.nodes import Nodes
from headwater.client.pipeline import Pipeline, lost_write
from headwater.client.routing import Address, ClusterMap
from headwater.client.waiting import WaitTeller
from headwater.errors import (
    BucketNotFound,
    ConnectionLost,
    NotMyVbucket,
    PeerSilent,
    StatusError,
    TransportError,
    error_for,
)
from headwater.protocol.handshake import refused
from headwater.transport.backoff import for_requests
from headwater.transport.waiting import Ready, Steps
from headwater.wire.cluster_map import NOBODY
from headwater.wire.header import Frame
from headwater.wire.status import Status


class Cluster(Nodes):
    """Connections, the map, and requests; all methods with `yield` are step generators."""

    def call(self, vbucket: int, request: Frame, action: str, *, reads: bool = False) -> Steps[Frame]:
        """Send a request to the node that owns its vbucket; returns the answer if it is a success.

        Temporary refusals and "not here" are retried with a growing delay until the deadline. So is a connection that
        could not be opened, or that broke under a request that only `reads`; a write whose answer was lost may have
        been carried out, so the caller must decide. The same holds for a durable write that is answered with
        SyncWriteAmbiguous.

        Args:
            request: the request; one with framing extras is a durable write (for the nodes of `for_durable_writes`).
            action: the request in words, for errors.

        Raises:
            StatusError: the server refused, or still refuses temporarily at the deadline.
            TransportError: no connection, or no answer in time.
            BucketMadeAnew: the bucket is another one by now, in which the vbucket's number, and the id of a collection,
                mean something else. The request was not carried out.
        """
        planned = self.map if request.key else None  # without a key it is the caller who means this vbucket
        began, backoff = self.clock(), for_requests()
        deadline = self.deadline()
        teller = WaitTeller(began, self.settings.timeout_seconds)
        while True:
            link = yield from self._link_of_owner(planned, vbucket, action, deadline)
            answer: Frame | StatusError | TransportError
            if isinstance(link, Pipeline):
                answer = yield from self._attempt(link, vbucket, request, action, deadline, reads=reads)
            else:
                answer = link
            if isinstance(answer, Frame):
                return answer
            delay = backoff.next_seconds()
            moment = self.clock() + delay
            # An attempt that is cut short turns a clear "not now" into silence, after which nobody knows whether a
            # write was done: it has at least as long as the delay before it, or is not made.
            if moment + delay >= deadline:
                raise tried(answer, backoff.failures, self.clock() - began)
            teller.tell(answer, self.clock())
            yield Ready((), moment)

    def _link_of_owner(
        self, planned: ClusterMap | None, vbucket: int, action: str, deadline: float
    ) -> Steps[Pipeline | StatusError | TransportError]:
        """Return a connection to the vbucket's owner, or an error that is worth another attempt.

        Args:
            planned: the map whose bucket the connection must lead to; None for any.
        """
        self._check_bucket(planned)
        owner = self.map.owner(vbucket)
        if owner is None:
            yield from self.look_around(until=deadline)
            return self.ownerless(vbucket, action)
        try:
            link = yield from self.link(owner, deadline)
        except (TransportError, StatusError) as error:
            if error.retriable:
                yield from self.look_around(without=owner, until=deadline)  # the others may know who took its place
            elif not (yield from self.was_emptied(error, deadline)):
                raise
            return error
        # Once more: the connection may have brought the map of a bucket that was made anew.
        self._check_bucket(planned)
        if planned is not None and not self.leads_to(link, planned):
            yield from self.look_around(without=owner, until=deadline)
            return self.misplaced(vbucket, action, owner)
        return link

    def _attempt(
        self, link: Pipeline, vbucket: int, request: Frame, action: str, deadline: float, *, reads: bool
    ) -> Steps[Frame | StatusError | TransportError]:
        """Return the answer, or an error that is worth another attempt."""
        if request.framing:
            # Before a byte is sent: a node that knows no durable writes would carry it out as a plain one.
            check_granted(link.greeting.features, action, link.address)
            request = within(request, deadline - self.clock())
        try:
            answer = yield from link.call(request, deadline)
        except ConnectionLost as error:
            if not reads:
                raise lost_write(error, action) from None
            return error
        # No second try, even of a read: the silence lasted up to the operation's deadline.
        except PeerSilent as error:
            raise error if reads else lost_write(error, action) from None
        if answer.status == Status.SUCCESS:
            return answer
        if answer.status != Status.NOT_MY_VBUCKET:
            refusal = refused(f"{action} (vbucket {vbucket})", answer)
            if not refusal.retriable:
                raise refusal
            return refusal
        yield from self.relearn(answer.value, link.address, deadline)
        return self.misplaced(vbucket, action, link.address)

    def _check_bucket(self, planned: ClusterMap | None) -> None:
        if planned is not None and not planned.is_same_bucket(self.map):
            raise self.made_anew(planned)

    def relearn(self, config: bytes, source: Address, until: float | None = None) -> Steps[None]:
        """Take over the map in the value of a NOT_MY_VBUCKET answer (kv.md 1: "07 responses carry the current cluster
        map"); if it is not newer than ours, request the map from the nodes.
        """
        before = self.map
        # The value is a map only for clients that are to be given one; of others it is empty (kv 1.4).
        if config.startswith(b"{"):
            self.learn(config, source)
        if self.map is before:
            yield from self.look_around(until=until)

    def ownerless(self, vbucket: int, action: str) -> NotMyVbucket:
        """Return the error for a vbucket without an owner in the map."""
        return NotMyVbucket(f"{action}: vbucket {vbucket} has no active node in the cluster map {self.map.label}")

    def misplaced(self, vbucket: int, action: str, address: Address) -> NotMyVbucket:
        """Return the error for a vbucket that is not active on the node that the map names."""
        problem = f"vbucket {vbucket} is not active on {address}; the newest map is {self.map.label}"
        return NotMyVbucket(f"{action}: {problem}")

    # ------------------------------------------------------------------ what a drain needs to know

    def seqnos(
        self,
        vbuckets: Collection[int] | None = None,
        patience_seconds: float | None = None,
        collection: int | None = None,
    ) -> Steps[dict[int, int]]:
        """Return the high seqno of every active vbucket of the bucket, each from the node that owns it.

        A vbucket that is moving is active nowhere for a moment, or not where the map says. It must not be missing in
        the answer: a reader up to "now" would take its history for empty. So a missing vbucket is asked for again.

        Args:
            vbuckets: vbuckets that must be in the answer; None for those that the map gives to a node.
            patience_seconds: for how long to ask; None for the time of one operation.
            collection: the id of the only collection that counts, on connections with Collections; None for all.

        Raises:
            NotMyVbucket: some vbuckets were active nowhere until the patience ended.
            TransportError, StatusError: an owner did not answer.
        """
        began, backoff = self.clock(), for_requests()
        patience = self.settings.timeout_seconds if patience_seconds is None else patience_seconds
        teller, until = WaitTeller(began, patience), began + patience
        if any(chain[0] == NOBODY for chain in self.map.chains):
            yield from self.look_around(
                until=until
            )  # nobody else would be asked for what had no owner when the map was made
        while True:
            highs, trouble = yield from self._seqnos_of_owners(collection, until)
            owned_vbuckets = [vb for vb, chain in enumerate(self.map.chains) if chain[0] != NOBODY]
            required = owned_vbuckets if vbuckets is None else vbuckets
            ownerless = [vb for vb in required if vb not in highs]
            if not ownerless:
                return dict(sorted(highs.items()))
            moment = self.clock() + backoff.next_seconds()
            problem = f"{len(ownerless)} of {len(required)} vbuckets, the first is {ownerless[0]},"
            ownerless_error = NotMyVbucket(
                f"{problem} are active on no node that the cluster map {self.map.label} names"
            )
            if moment >= until:
                raise tried(trouble or ownerless_error, backoff.failures, self.clock() - began)
            teller.tell(trouble or ownerless_error, self.clock())
            yield Ready((), moment)
            yield from self.look_around(until=until)

    def _seqnos_of_owners(
        self, collection: int | None, until: float
    ) -> Steps[tuple[dict[int, int], TransportError | StatusError | None]]:
        """Request the high seqnos of every node that owns a vbucket.

        Returns: seqnos by vbucket, without the vbuckets that no owner reported; and the last temporary error, or None.
        """
        highs: dict[int, int] = {}
        trouble: TransportError | StatusError | None = None
        cluster_map = self.map
        for address in cluster_map.owning:
            try:
                link = yield from self.link(address)
                answer = yield from self.seqnos_of(link, collection)
            except (TransportError, StatusError) as error:
                if not error.retriable and not (yield from self.was_emptied(error, until)):
                    raise
                trouble = error
            else:
                # Only of the vbuckets that this map gives to the node: one that was failed over still reports the
                # others, with old seqnos.
                highs |= {vb: seqno for vb, seqno in answer.items() if cluster_map.owner(vb) == address}
        return highs, trouble


def tried(error: TransportError | StatusError, attempts: int, seconds: float) -> TransportError | StatusError:
    """Return an error with the number of attempts and their time added."""
    effort = f"{attempts} attempts in {seconds:.1f} s"
    if isinstance(error, StatusError):
        context = f"{error.context} ({effort})"
        # Both have one number, and a missing bucket must not pass for a missing document.
        return BucketNotFound(context) if isinstance(error, BucketNotFound) else error_for(error.status, context)
    return ConnectionLost(error.peer, f"{error.reason} ({effort})") if isinstance(error, ConnectionLost) else error
