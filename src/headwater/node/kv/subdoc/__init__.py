"""Parts of JSON documents by path: what the sub-document commands do to a text, without a node around it."""
