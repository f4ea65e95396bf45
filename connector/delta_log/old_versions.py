"""Which files of a local table no version needs that stays readable (ENG-8, TBL-23).

Theory. Readable are the versions of the log retention, and older ones that recorded cuts name. A
table with a commit each second has 86,400 versions a day, and 400 cuts. So an old version that
is kept gets a checkpoint of its own, unless its commits after the checkpoint before it are few.
Then the commits between two cuts can go. A file of the table can go if the newest version does not
have it, no readable version has it, and it was removed before the log retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from connector.delta_log.actions import State, files_of, lines_of
from connector.delta_log.checkpoint import (
    checkpoint_file,
    checkpoint_of,
    checkpoints_in,
    read_checkpoint,
)
from connector.delta_log.log import Log
from connector.delta_log.put import LocalFolder
from connector.state.log_damage import commit_file


class OldVersions:
    """The old versions of a table. lowmark must know the table completely. Every method raises as
    those of `Log`.
    """

    def __init__(self, folder: LocalFolder, log: Log) -> None:
        self._folder, self._log = folder, log
        self._files = dict[int, frozenset[str]]()
        self._settled = set[int]()

    def files(self, versions: Collection[int]) -> set[str]:
        """The files of these versions, also those of deletion vectors. A version that the log does
        not have any more has none: it cannot be read.
        """
        new = {version for version in versions if version not in self._files}
        self._files = {version: self._files[version] for version in set(versions) - new}
        for version, state, _ in self._states(new):
            self._files[version] = frozenset(state.files())
        return set[str]().union(*self._files.values())

    def delete_unneeded(self, kept: Collection[int], before: int) -> int:
        """Delete the files that were removed before `before` (microseconds), unless a version since
        then has them, or one of the `kept` versions. Returns their number.
        """
        live, removed = self._log.removed()
        needed, gone = live | self.files(kept), set[str]()
        for id_, action in removed.items():
            at = action.get("deletionTimestamp")
            is_old = at is not None and int(at) * 1_000 < before
            (gone if is_old else needed).update(files_of(id_, action))
        unneeded = (gone - needed) & self._folder.table_files()
        for name in sorted(unneeded):
            self._folder.delete_of_table(name)
        return len(unneeded)

    def settle(self, versions: Collection[int]) -> None:
        """Write a checkpoint for each of these old versions, if the commits that it needs have more
        actions than it has files. Then other commits can be deleted. It lacks the files that were
        removed before. So the log has a newer checkpoint, which has them.
        """
        newest = max(checkpoints_in(self._folder.names()), default=-1)
        self._settled &= set(versions)
        new = {version for version in versions if version < newest} - self._settled
        for version, state, actions in self._states(new):
            if actions > len(state.added) and not state.not_known():
                content, _ = checkpoint_of(state, (), 0)
                self._folder.write(checkpoint_file(version), content)
            self._settled.add(version)

    def _states(self, versions: Iterable[int]) -> Iterator[tuple[int, State, int]]:
        """Each of these versions that the log has, in rising order. With its state, which the next
        step changes, and the number of actions after the newest checkpoint up to it.
        """
        wanted = sorted(versions)
        names = self._folder.names() if wanted else []
        commits, parts = set(names), checkpoints_in(names)
        state, actions = State(), 0
        for version in wanted:
            following = range(state.version + 1, version + 1)
            if state.version < 0 or any(commit_file(number) not in commits for number in following):
                usable = (number for number in parts if state.version < number <= version)
                for base in sorted(usable, reverse=True):
                    checkpoint = read_checkpoint(base, parts[base], self._folder.read)
                    if checkpoint is not None:
                        state, actions = checkpoint, 0
                        break
            for number in range(state.version + 1, version + 1):
                content = self._folder.read(commit_file(number))
                if content is None:
                    break
                lines = lines_of(content)
                state.commit(number, lines)
                actions = 0 if number in parts else actions + len(lines)
            if state.version == version:
                yield version, state, actions
