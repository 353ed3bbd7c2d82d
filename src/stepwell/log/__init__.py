"""Ordered logs: numbered entries that any process can append, read and follow."""

from stepwell.log.log import Log, LogEntry

__all__ = ["Log", "LogEntry"]
