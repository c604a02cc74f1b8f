"""A whole cluster in simulated time: members, operators, clients, readers and faults, all decided by one seed.

system.py      what programs take from the operating system: sockets, clocks, chance
programs.py    processes beside the nodes: clients, operators, readers, which can be killed at any instant
damage.py      bits that flip on one disk, and the machine that is replaced
guests.py      clients whose rights change while they ask
rights.py      what an operator does to their rights, and who judges what they are told
machines.py    the machines on which nodes run: slow, full and damaged disks, stopped processes, clocks that are wrong
workload.py    clients that follow the map and note down what they asked and heard
orders.py      a second bucket with clients of its own, which is dropped and made anew
operators.py   what operators do, by the product's own code
readers.py     readers of changes, by the product's own client
blocking.py    processes whose code blocks: backups and mirrors
objects.py     an object store that loses requests and answers
backups.py     backups of the cluster, and what becomes of one that is restored
mirror.py      the lake's mirror, and the judge of its table's versions
nemesis.py     faults, and when they come
watcher.py     who serves what, and what every copy holds, looked at after each event
invariants.py  what is promised, as a list, and who judges it
second.py      the second judge of what clients saw
world.py       one run, from the founding to the verdict
"""
