"""Converts messages to events: each end of a conversation is an object without socket, thread or clock."""
