"""TAP: the options of a session, its consumer, its producer, and the ledger of acknowledged messages."""
