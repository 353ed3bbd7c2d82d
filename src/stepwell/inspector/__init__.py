"""Shows the records and runs of a storage in the browser, and edits them if that is allowed.

``stepwell inspect sqlite:///bot.db`` starts it; ``inspector(storage, flows)`` is an ASGI application to mount.
"""

from __future__ import annotations

from stepwell.engine import require

require("starlette", "inspector")

from stepwell.inspector.app import Inspector, inspector  # noqa: E402
from stepwell.web.auth import TrustedProxy  # noqa: E402

__all__ = ["Inspector", "TrustedProxy", "inspector"]
