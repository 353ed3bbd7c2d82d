"""The packages that the server needs. The only module that imports them."""

from __future__ import annotations

try:
    import httpx
    import python_multipart as multipart
    import uvicorn
    from python_multipart import exceptions as multipart_errors
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as _error:
    raise ImportError(f"the local Bot API needs {_error.name}; run: pip install 'stepwell[botapi]'") from _error

__all__ = ["HttpToolsProtocol", "httpx", "multipart", "multipart_errors", "uvicorn"]
