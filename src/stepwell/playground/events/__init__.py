"""The events of the page, and what a user does with them: undo, replay, write a test."""
