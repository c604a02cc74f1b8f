"""The operator's side of several nodes: programs outside of the nodes that decide where each vbucket lives.

admin.py      the administration of one node: states, seqnos, failover logs, maps; answers.py parses its answers
mover.py      vbuckets moved from one node to another: copied, taken over, put right when that broke off
recovery.py   the state after a broken move, and its repair, without I/O; settling.py asks the nodes and repairs
transfer.py   one vbucket's way, in the steps of the specification
proxied.py    a proxied connection between two nodes; proxy.py and pipe.py pass its frames

map.py the nodes of each vbucket; balance.py plans better ones, with few moves survey.py the state of all nodes, and its
meaning; members.py asks them, and sends them maps plan.py the plan of a rebalance; rebalance.py carries it out, with
publisher.py (the map), watch.py (waits for level copies) and repair.py (finishes an earlier run) founding.py the first
map; failover.py: a member is dead, refusals.py: reasons against it; promotion.py: a pair without a map status.py the
state of a cluster; streams.py: the readers of its nodes, and their lag work/ operators' work with all this: each kind
declared once, for commands and the console's forms
"""
