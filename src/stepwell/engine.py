"""The engine: records and what happens to them, for a layer of your own and for tools.

Conversations, node flows, logs and the adapters of frameworks are built on these names.
"""

from stepwell._backoff import backoff
from stepwell._optional import require
from stepwell._portal import background_loop, call_function, sync_on
from stepwell._secrets import MASK, displayed, is_secret, masked_text, quoted
from stepwell.codec import Seal, check_name, decode_key, decode_namespace, encode_key, encode_namespace
from stepwell.codec.json import Struct, decoder, from_json, replaced, to_json
from stepwell.codec.keys import decode_name
from stepwell.codec.large import LARGE as LARGE_TEXT
from stepwell.codec.large import fingerprint, in_thread, is_large, seal_data
from stepwell.codec.masking import masked, masked_field, masked_fields
from stepwell.codec.secret import secret_fields, secret_fields_of
from stepwell.codec.types import class_of, is_registered, packed, register_shape
from stepwell.codec.values import decode as decode_value
from stepwell.codec.values import encode as encode_value
from stepwell.codec.values import step as path_step
from stepwell.dispatch import WAKE, Owner, TimerSource, serve_timers
from stepwell.errors.wording import counted
from stepwell.log.names import LAST as LAST_ENTRY
from stepwell.log.names import log_tag
from stepwell.log.tail import tail_of
from stepwell.record import (
    AUDIT,
    BUDGETS,
    BY_BOT,
    DAY,
    INBOX,
    KEEP,
    LOGS,
    NO_HEAD,
    NOWHERE,
    PROCESSES,
    QUARANTINE,
    REFUSED,
    RUNS,
    TURNS,
    Address,
    Change,
    Head,
    Keep,
    OpenedHead,
    Place,
    Queue,
    Range,
    ReservedNamespace,
    Stored,
    Version,
)
from stepwell.slot import Changes, Slot
from stepwell.slot.process import has_died
from stepwell.storage.base.loops import run_in_loop
from stepwell.storage.contract import RunBatch
from stepwell.storage.copying.copy import Copied, count_extra, count_records
from stepwell.storage.listing import ANY, Any_, Due, Entry, Page, Query, StateCount
from stepwell.storage.observers import observe_batches, observe_storages
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Guard, Operation, Release, Result, Taken
from stepwell.storage.reference import weight
from stepwell.storage.transport.batch import Batch
from stepwell.storage.transport.group_commit import GroupCommit
from stepwell.storage.transport.starting import when_available
from stepwell.storage.urls import as_storage

__all__ = [
    "ANY",
    "AUDIT",
    "BUDGETS",
    "BY_BOT",
    "DAY",
    "INBOX",
    "KEEP",
    "LARGE_TEXT",
    "LAST_ENTRY",
    "LOGS",
    "MASK",
    "NOWHERE",
    "NO_HEAD",
    "PROCESSES",
    "QUARANTINE",
    "REFUSED",
    "RUNS",
    "TURNS",
    "WAKE",
    "Address",
    "Any_",
    "Applied",
    "Apply",
    "Batch",
    "Change",
    "Changes",
    "Claim",
    "Claimed",
    "Copied",
    "Due",
    "Entry",
    "Get",
    "GroupCommit",
    "Guard",
    "Head",
    "Keep",
    "OpenedHead",
    "Operation",
    "Owner",
    "Page",
    "Place",
    "Query",
    "Queue",
    "Range",
    "Release",
    "ReservedNamespace",
    "Result",
    "RunBatch",
    "Seal",
    "Slot",
    "StateCount",
    "Stored",
    "Struct",
    "Taken",
    "TimerSource",
    "Version",
    "as_storage",
    "background_loop",
    "backoff",
    "call_function",
    "check_name",
    "class_of",
    "count_extra",
    "count_records",
    "counted",
    "decode_key",
    "decode_name",
    "decode_namespace",
    "decode_value",
    "decoder",
    "displayed",
    "encode_key",
    "encode_namespace",
    "encode_value",
    "fingerprint",
    "from_json",
    "has_died",
    "in_thread",
    "is_large",
    "is_registered",
    "is_secret",
    "log_tag",
    "masked",
    "masked_field",
    "masked_fields",
    "masked_text",
    "observe_batches",
    "observe_storages",
    "packed",
    "path_step",
    "quoted",
    "register_shape",
    "replaced",
    "require",
    "run_in_loop",
    "seal_data",
    "secret_fields",
    "secret_fields_of",
    "serve_timers",
    "sync_on",
    "tail_of",
    "to_json",
    "weight",
    "when_available",
]
