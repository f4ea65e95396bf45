"""A database becomes Delta tables, while every part is killed once.

    make demo-postgres

1. Start: PostgreSQL with a small shop, a Kafka broker, Debezium, `connector bridge` and
   `connector run` start as local processes.
2. Work: the shop writes three tables in one transaction, keys change, large values are not touched,
   a column is added, a table is truncated.
3. Kill: SIGKILL ends each part once, while the shop works, and the part starts again.
4. Compare: each table must have the rows of PostgreSQL. Each recorded cut must be a state that
   PostgreSQL had after a transaction.
5. Report.

- `shop`: the source. It remembers what PostgreSQL had after each transaction.
- `compare`: the comparison with it.
- `__main__`: the scenes.
"""
