"""The commands that read and change records: listed, shown, changed, copied, imported and encrypted."""
