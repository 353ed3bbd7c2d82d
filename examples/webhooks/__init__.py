"""The registration bot behind a webhook, one framework a file."""
