"""The registration bot behind a webhook, one file per framework."""
