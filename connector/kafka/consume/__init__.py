"""Read a change stream: records, watermarks, whole transactions, ranges of commit time."""
