"""Offsets of the fields of a frame, in bytes from its first one, as constants that numba freezes.

All come from the declarations in headwater.wire, so a change of a layout there changes the kernels. Stored and sent
frames have the same layouts, those of DCP; `*_IN` is an offset within the extras.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from headwater.wire import dcp, documents, header, subdoc, tap, upr
from headwater.wire.layout import Layout
from headwater.wire.opcodes import Opcode

U = np.uintp


def _offset_of(layout: Layout, name: str) -> np.uintp:
    return U(layout.offset(name))


def _head(layout: Layout) -> int:
    """Return the first eight bytes of a message's frame, without key length, datatype and vbucket."""
    return layout.magic << 56 | layout.opcode << 48 | layout.extras_bytes << 24


HEADER: Final = U(header.HEADER_BYTES)
REQUEST: Final = U(header.Magic.CLIENT_REQUEST)
OPCODE_AT: Final = U(header.OPCODE_AT)
KEY_LENGTH_AT: Final = U(header.KEY_LENGTH_AT)
EXTRAS_LENGTH_AT: Final = U(header.EXTRAS_LENGTH_AT)
DATATYPE_AT: Final = U(header.DATATYPE_AT)
VBUCKET_AT: Final = U(header.VBUCKET_AT)
BODY_LENGTH_AT: Final = U(header.BODY_LENGTH_AT)
OPAQUE_AT: Final = U(header.OPAQUE_AT)
CAS_AT: Final = U(header.CAS_AT)

# ------------------------------------------------------------------ changes: DCP 2.8 to 2.10, UPR where it differs
MUTATION: Final = U(Opcode.DCP_MUTATION)
DELETION: Final = U(Opcode.DCP_DELETION)
EXPIRATION: Final = U(Opcode.DCP_EXPIRATION)

MUTATION_EXTRAS: Final = U(dcp.Mutation.layout.extras_bytes)
UPR_MUTATION_EXTRAS: Final = U(upr.Mutation.layout.extras_bytes)
DELETION_EXTRAS: Final = U(dcp.Deletion.layout.extras_bytes)  # UPR's expirations have as many
DELETION_V2_EXTRAS: Final = U(dcp.DeletionV2.layout.extras_bytes)
EXPIRATION_EXTRAS: Final = U(dcp.Expiration.layout.extras_bytes)

SEQNO_AT: Final = _offset_of(dcp.Mutation.layout, "by_seqno")
REV_SEQNO_AT: Final = _offset_of(dcp.Mutation.layout, "rev_seqno")
FLAGS_AT: Final = _offset_of(dcp.Mutation.layout, "flags")
EXPIRY_AT: Final = _offset_of(dcp.Mutation.layout, "expiration")
LOCK_TIME_AT: Final = _offset_of(dcp.Mutation.layout, "lock_time")
NMETA_AT: Final = _offset_of(dcp.Mutation.layout, "nmeta")
NRU_AT: Final = _offset_of(dcp.Mutation.layout, "nru")
DELETION_NMETA_AT: Final = _offset_of(dcp.Deletion.layout, "nmeta")
DELETE_TIME_AT: Final = _offset_of(dcp.DeletionV2.layout, "delete_time")
UNUSED_AT: Final = _offset_of(dcp.DeletionV2.layout, "unused")

REV_SEQNO_IN, FLAGS_IN, EXPIRY_IN = REV_SEQNO_AT - HEADER, FLAGS_AT - HEADER, EXPIRY_AT - HEADER
NMETA_IN, DELETION_NMETA_IN, DELETE_TIME_IN = NMETA_AT - HEADER, DELETION_NMETA_AT - HEADER, DELETE_TIME_AT - HEADER

MUTATION_HEAD: Final = _head(dcp.Mutation.layout)
DELETION_HEAD: Final = _head(dcp.DeletionV2.layout)

# ------------------------------------------------------------------ a snapshot marker: DCP 2.7
MARKER_HEAD: Final = _head(dcp.SnapshotMarker.layout)
MARKER_EXTRAS: Final = U(dcp.SnapshotMarker.layout.extras_bytes)
START_AT: Final = _offset_of(dcp.SnapshotMarker.layout, "start_seqno")
END_AT: Final = _offset_of(dcp.SnapshotMarker.layout, "end_seqno")
MARKER_FLAGS_AT: Final = _offset_of(dcp.SnapshotMarker.layout, "flags")
START_IN, END_IN = START_AT - HEADER, END_AT - HEADER
# Version 2 has its version in the extras, and the same numbers, and more, in the value.
MARKER_V2_EXTRAS: Final = U(dcp.SnapshotMarkerV2.layout.extras_bytes)
MARKER_V2_BYTES: Final = U(dcp.SnapshotMarkerV2.layout.value_bytes)
MARKER_V22_BYTES: Final = U(dcp.SnapshotMarkerV22.layout.value_bytes)

# ------------------------------------------------------------------ what takes a seqno without being a change: DCP 2.16
SEQNO_ADVANCED_EXTRAS: Final = U(dcp.SeqnoAdvanced.layout.extras_bytes)
SYSTEM_EVENT_EXTRAS: Final = U(dcp.SystemEvent.layout.extras_bytes)
PREPARE_EXTRAS: Final = U(dcp.Prepare.layout.extras_bytes)
COMMIT_EXTRAS: Final = U(dcp.Commit.layout.extras_bytes)  # an abort's as well
COMMIT_SEQNO_IN: Final = _offset_of(dcp.Commit.layout, "commit_seqno") - HEADER

# ------------------------------------------------------------------ what a change replaced: headwater's own
BEFORE_HEAD: Final = _head(dcp.Before.layout)
BEFORE_EXTRAS: Final = U(dcp.Before.layout.extras_bytes)
BEFORE_SEQNO_IN: Final = _offset_of(dcp.Before.layout, "before_seqno") - HEADER
BEFORE_REV_SEQNO_IN: Final = _offset_of(dcp.Before.layout, "rev_seqno") - HEADER
BEFORE_FLAGS_IN: Final = _offset_of(dcp.Before.layout, "flags") - HEADER
BEFORE_EXPIRY_IN: Final = _offset_of(dcp.Before.layout, "expiration") - HEADER
BEFORE_STATE_IN: Final = _offset_of(dcp.Before.layout, "state") - HEADER

# ------------------------------------------------------------------ key-value requests and their answers: kv.md 2
SET_EXTRAS: Final = U(documents.Set.layout.extras_bytes)
SET_FLAGS_AT: Final = _offset_of(documents.Set.layout, "flags")
SET_EXPIRY_AT: Final = _offset_of(documents.Set.layout, "expiration")
FOUND_EXTRAS: Final = U(documents.GetResponse.layout.extras_bytes)
FOUND_FLAGS_AT: Final = _offset_of(documents.GetResponse.layout, "flags")
STORED_EXTRAS: Final = U(max(documents.Stored.layout.extras_lengths))  # with MutationSeqno

LOOKUP_SPEC: Final = U(subdoc.SPEC_BYTES)  # and the path
LOOKUP_RESULT: Final = U(subdoc.RESULT_BYTES)  # and the value

# ------------------------------------------------------------------ what a TAP producer sends: tap.md 2
TAP_EXTRAS: Final = U(tap.Delete.layout.extras_bytes)
TAP_MUTATION_EXTRAS: Final = U(tap.Mutation.layout.extras_bytes)
ENGINE_LENGTH_AT: Final = _offset_of(tap.Mutation.layout, "engine_len")
TAP_FLAGS_AT: Final = _offset_of(tap.Mutation.layout, "flags")
TTL_AT: Final = _offset_of(tap.Mutation.layout, "ttl")
ITEM_FLAGS_AT: Final = _offset_of(tap.Mutation.layout, "item_flags")
ITEM_EXPIRY_AT: Final = _offset_of(tap.Mutation.layout, "item_expiration")
