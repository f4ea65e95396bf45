"""The jars that pyspark lacks and those of a local Kafka broker: pinned in the repository, fetched once, checked always.

`broker.lock` and `spark.lock` list one jar a line: `organisation:artifact:version size sha256`. Exactly these coordinates,
each without what it depends on, are handed to the Ivy inside pyspark; nothing is resolved, so no start-up can bring another
jar than the last one did. Ivy knows by itself where to ask; an Ivy settings file can name a mirror. A jar enters the folder
only after its size and sha256 were compared with the lock, by a rename, so that whoever sees it sees all of it.

    <folder>/<organisation>__<artifact>-<version>.jar    shared by both locks and by all checkouts
    <folder>/<lock>-<start of the lock's sha256>.ok      every jar of this lock has been checked
    <folder>/.lock                                       held while fetching: two processes do not fetch twice
"""

from __future__ import annotations

from connector.jars.java import find_java
from connector.jars.lock import Lock, LockedJar, read_lock
from connector.jars.store import JarStore, fetch

__all__ = ["JarStore", "Lock", "LockedJar", "fetch", "find_java", "read_lock"]
