"""Messages become events: each end of a conversation as an object without socket, thread or clock."""
