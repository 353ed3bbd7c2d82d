"""Methods that send, edit and copy messages, and react to them."""
