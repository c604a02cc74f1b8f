"""The console: a web page for operators of a bucket, served from the machine they sit at. `headwater console URL`.

Needs the extra `console` (starlette, uvicorn, jinja2). A file each for: access (guard), the nodes' answers and their
age (lookout), figures made of these (figures), documents by key (editing, json_view), keys by their prefix (listing),
the live tail (tail), work on the cluster (work), the pages (pages), the application (app) and its server (server).
"""
