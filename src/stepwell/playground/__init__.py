"""Try a bot without Telegram."""
