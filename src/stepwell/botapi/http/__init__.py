"""The Bot API over HTTP: requests, webhooks, and the server."""
