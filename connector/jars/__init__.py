"""The jars that pyspark lacks, and those of a local Kafka broker. They are pinned in the
repository, downloaded once, and always checked.

`broker.lock`, `spark.lock` and `s3.lock` have one jar a line: `organisation:artifact:version size
sha256`. `s3.lock` is only needed for a warehouse in an object store with the S3 API.
Ivy, which is part of pyspark, downloads exactly these coordinates without their dependencies.
Nothing is resolved, so every start uses the same jars. Ivy has its own default repositories. An Ivy
settings file can name a mirror. A jar is moved into the folder by a rename, after its size and
sha256 were compared with the lock. So another process never sees a part of a jar.

The files in the folder are:

- `<organisation>__<artifact>-<version>.jar`: a jar, shared by all locks and by all checkouts.
- `<lock>-<start of the lock's sha256>.ok`: every jar of this lock was checked.
- `.lock`: locked during a download, so that two processes do not download the same jars.
"""

from __future__ import annotations

from connector.jars.store import JarStore, Lock, fetch, find_java

__all__ = ["JarStore", "Lock", "fetch", "find_java"]
