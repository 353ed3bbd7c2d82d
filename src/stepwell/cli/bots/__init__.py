"""Commands that run a bot: against Telegram, in the playground, with the local Bot API."""
