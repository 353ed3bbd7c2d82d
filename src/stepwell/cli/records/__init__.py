"""Commands that read and change records: list, show, edit, copy, import, encrypt."""
