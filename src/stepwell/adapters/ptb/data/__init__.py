"""The data of users, chats and the bot, and keyboards with arbitrary callback data, as records."""
