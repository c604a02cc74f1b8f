"""The console: a web page for operators of a bucket, served from the machine they sit at. `headwater console URL`.

Needs the extra `console` (starlette, uvicorn, jinja2). A file each for: who may talk to it (guard), what the nodes say
and how old that is (lookout), figures made of it (figures), documents by key (editing, json_view), keys by their prefix
(listing), the live tail (tail), work on the cluster (work), the pages (pages), all of it together (app) and its server
(server).
"""
