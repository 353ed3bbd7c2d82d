"""Methods for chats: members, invite links, topics and rights."""
