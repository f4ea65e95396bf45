"""A whole pipeline in five scenes: the history of a git repository becomes a Delta table.

    make demo
    python -m examples.demo --repository ~/src/my-project

1. Publish: a Kafka broker and `connector run` start. The first half of the history is published,
   with its changes out of order, some of them twice, and bad records between them.
2. Kill: SIGKILL ends the pipeline while it works on the second half.
3. Resume: `connector run --once` continues where the pipeline was, and applies everything.
4. Compare: the table must be the tree that `git ls-tree` lists. The bad records must be dead
   letters, and each record of the topic must be in the changelog once.
5. Report.

- `history`: the source. It reads commits as changes.
- `publish`: what goes into the topic.
- `pipeline`: the process that is killed.
- `compare`: the truth, and the comparison with it.
- `__main__`: the scenes.
"""
