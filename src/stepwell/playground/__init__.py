"""Try a bot without Telegram: a local Bot API, and a page that shows the bot's state.

``stepwell play bot.py`` starts both; use ``playground.play.Playground`` in programs.
"""
