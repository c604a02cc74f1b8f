"""A whole cluster in simulated time: members, operators, clients, readers and faults, all decided by one seed.

system.py      the operating system of the programs: sockets, clocks, random numbers
programs.py    processes beside the nodes: clients, operators, readers, which can be killed at any instant
damage.py      bits that flip on one disk, and the machine that is replaced
guests.py      clients whose rights change while they send requests
rights.py      an operator's changes of their rights, and the judge of the answers they get
machines.py    the machines on which nodes run: slow, full and damaged disks, stopped processes, wrong clocks
workload.py    clients that follow the map and record their requests and answers
orders.py      a second bucket with clients of its own, which is dropped and created anew
operators.py   the work of operators, by the product's own code
readers.py     readers of changes, by the product's own client
blocking.py    processes whose code blocks: backups and mirrors
objects.py     an object store that loses requests and answers
backups.py     backups of the cluster, and the check of a restored one
mirror.py      the lake's mirror, and the judge of its table's versions
nemesis.py     faults, and their times
watcher.py     the owners and the content of every copy, checked after each event
invariants.py  the promises, as a list, each with its judge
second.py      the second judge of the clients' histories
world.py       one run, from the founding to the verdict
"""
