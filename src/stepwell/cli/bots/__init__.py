"""The commands that run a bot: against Telegram, in the playground, or with the local Bot API."""
