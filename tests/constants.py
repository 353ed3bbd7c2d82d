"""Times and sizes of the library that are not options: tests set them here, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

__all__ = ["Constants"]

#: The module and the constant of each name.
NAMES = {
    "held_pauses": "stepwell.turns.running.held:PAUSES",
    "resend": "stepwell.turns.running.runner:RESEND",
    "audit_keep": "stepwell.operate.audit:KEEP",
    "batch_operations": "stepwell.storage.transport.lane:MAX_OPERATIONS",
    "cancel_timeout": "stepwell.turns.running.attempt:CANCEL_TIMEOUT",
    "checkpoint_commits": "stepwell.storage.sqlite.connection:CHECKPOINT_COMMITS",
    "checkpoint_pages": "stepwell.storage.sqlite.connection:CHECKPOINT_PAGES",
    "copy_parts_at_once": "stepwell.storage.copying.copy:PARTS_AT_ONCE",
    "copy_waits_silently": "stepwell.storage.copying.claims:LOG_AFTER",
    "counted_at_nodes": "stepwell.inspector.subject:COUNTED_AT_NODES",
    "demo_script": "stepwell.cli.demo.script:SCRIPT",
    "executor_pauses": "stepwell.nodes.batch.executor:_PAUSES",
    "few_pieces": "stepwell.codec.pieces:_FEW",
    "health_poll_age": "stepwell.nodes.workers.worker:POLL_AGE",
    "health_request_timeout": "stepwell.dispatch.health:REQUEST_TIMEOUT",
    "hosts_checked_every": "stepwell.storage.postgres.hosts:CHECK_EVERY",
    "items_a_part": "stepwell.nodes.batch.durable:ITEMS_A_PART",
    "langgraph_linger": "stepwell.adapters.langgraph.ownership:_LINGER",
    "last_notices": "stepwell.storage.transport.notices:LAST_NOTICES",
    "lease": "stepwell.nodes.run.lease:LEASE",
    "limit_checked_every": "stepwell.nodes.queue.everywhere:CHECK_EVERY",
    "listing_most_places": "stepwell.storage.sqlite.listing:MOST_PLACES",
    "long_wait": "stepwell.slot.lease:LONG_WAIT",
    "longest_text": "stepwell.botapi.formatting.texts:MAX_TEXT",
    "longest_tick": "stepwell.dispatch.polling:LONGEST_TICK",
    "most_marks": "stepwell.log.tail:MOST_MARKS",
    "mounts": "stepwell.storage.sqlite.connection:MOUNTS",
    "notices_arrives_within": "stepwell.testing.contract.notices:ARRIVES_WITHIN",
    "notices_check_every": "stepwell.storage.transport.notices:CHECK_EVERY",
    "oldest_postgres": "stepwell.storage.postgres.schema:OLDEST",
    "outage_calm": "stepwell.storage.transport.outage:CALM",
    "outage_warn_every": "stepwell.storage.transport.outage:WARN_EVERY",
    "outbox_most_attempts": "stepwell.fsm.timers.outbox:MOST_ATTEMPTS",
    "outbox_stop_timeout": "stepwell.fsm.timers.outbox:STOP_TIMEOUT",
    "pages_heartbeat": "stepwell.playground.pages:HEARTBEAT",
    "partition_overdue": "stepwell.nodes.queue.partitions:OVERDUE",
    "partitions_at_once": "stepwell.nodes.queue.partitions:AT_ONCE",
    "parts_a_commit": "stepwell.nodes.batch.durable:PARTS_A_COMMIT",
    "piece_bytes": "stepwell.codec.pieces:PIECE",
    "places_most_counted": "stepwell.storage.postgres.places:MOST_COUNTED",
    "places_most_lookups": "stepwell.storage.postgres.places:MOST_LOOKUPS",
    "polling_most_pauses": "stepwell.dispatch.polling:MOST_PAUSES",
    "presence_every": "stepwell.storage.presence:EVERY",
    "presence_first": "stepwell.storage.presence:FIRST",
    "presence_history_kept": "stepwell.storage.presence:HISTORY_KEPT",
    "presence_kept": "stepwell.storage.presence:KEPT",
    "processes_died": "stepwell.operate.processes:DIED",
    "quick_erase_bytes": "stepwell.storage.sqlite.storage:QUICK_ERASE_BYTES",
    "reading_prompt": "stepwell.inspector.subject:PROMPT",
    "rechecks": "stepwell.nodes.run.journal:RECHECKS",
    "redis_slow": "stepwell.storage.redis.server:SLOW",
    "repair_every": "stepwell.nodes.workers.worker:REPAIR_EVERY",
    "replies": "stepwell.nodes.run.journal:REPLIES",
    "report_server_timeout": "stepwell.playground.report_server:TIMEOUT",
    "retry_delay": "stepwell.adapters.framework.retry:FIRST_DELAY",
    "rotation_parts_at_once": "stepwell.storage.sealed.rotation:PARTS_AT_ONCE",
    "router_pause": "stepwell.fsm.router:FIRST_PAUSE",
    "run_notice": "stepwell.nodes.control.runs:NOTICE",
    "schedule_runs": "stepwell.nodes.workers.stored:MOST_RUNS",
    "schema_idle_limit": "stepwell.storage.postgres.schema:_IDLE_TIMEOUT",
    "schema_lock_wait": "stepwell.storage.postgres.schema:_LOCK_TIMEOUT",
    "search_hold": "stepwell.cli.records.search:HOLD",
    "search_page": "stepwell.operate.search:PAGE",
    "sending_patience": "stepwell.adapters.framework.sending:CALL_PATIENCE",
    "sending_pauses": "stepwell.adapters.framework.sending:PAUSES",
    "sibling_wait": "stepwell.adapters.aiogram.claims:SIBLING_WAIT",
    "suspects_deaths": "stepwell.nodes.run.deaths:DEATHS",
    "thread_pool_idle": "stepwell.nodes.walk.thread_pool:IDLE",
    "threads_copy_bytes": "stepwell.adapters.langgraph.threads:_COPY_BYTES",
    "tick": "stepwell.dispatch.polling:TICK",
    "timers_a_page": "stepwell.dispatch.timers:PAGE",
    "turns_show_every": "stepwell.turns.running.attempt:SHOW_EVERY",
    "untaken": "stepwell.telegram.receiving.beside:UNTAKEN",
    "value_owners": "stepwell.codec.types:_OWNERS",
    "views_looked": "stepwell.inspector.requests:LOOKED",
    "views_page": "stepwell.inspector.requests:PAGE",
    "waiters_check_every": "stepwell.slot.waiters:CHECK_EVERY",
    "watch": "stepwell.nodes.run.journal:WATCH",
    "webhook_remembered": "stepwell.telegram.receiving.webhook:REMEMBERED",
    "webhook_unanswered": "stepwell.telegram.receiving.webhook:UNANSWERED",
}


class Constants:
    """Set constants for one test.

    Example::

        constants(lease=0.3, tick=0.02)
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, **values: Any) -> None:
        for name, value in values.items():
            module, _, constant = NAMES[name].partition(":")
            self._monkeypatch.setattr(import_module(module), constant, value)
