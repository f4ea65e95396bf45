"""Histories that repositories really have, each as a function that makes it."""

from __future__ import annotations

from tests.unit.git_repository import START, Repository


def plain(repository: Repository) -> None:
    repository.write("a", "one\n")
    repository.write("folder/n", "two\n")
    repository.commit("first")
    repository.write("a", "changed\n")
    repository.commit("second")


def renames_and_returns(repository: Repository) -> None:
    plain(repository)
    repository.git("mv", "folder", "moved")
    repository.commit("a whole folder moves")
    repository.git("rm", "--quiet", "a")
    repository.commit("deleted")
    repository.write("a", "one\n")
    repository.commit("created again")


def modes(repository: Repository) -> None:
    plain(repository)
    repository.write("a", "changed\n", executable=True)
    repository.commit("only the mode")
    (repository.folder / "link").symlink_to("a")
    repository.write("becomes-link", "folder/n")
    repository.commit("a link, and a file that becomes one")
    (repository.folder / "becomes-link").unlink()
    (repository.folder / "becomes-link").symlink_to("folder/n")
    repository.commit("the same bytes, as a link")


def file_becomes_folder(repository: Repository) -> None:
    plain(repository)
    (repository.folder / "a").unlink()
    repository.write("a/inner", "one\n")
    repository.commit("a folder")
    (repository.folder / "a" / "inner").unlink()
    (repository.folder / "a").rmdir()
    repository.write("a", "and a file again\n")
    repository.commit()


def odd_paths(repository: Repository) -> None:
    for path in (
        b"\xff\xfe not utf-8",
        b"new\nline",
        b"tab\t",
        b'"quoted" \\ back',
        b":colon",
        b" ",
        "ünï/ç🚀".encode(),
        b"-rf",
        b"d/" * 300 + b"deep",
    ):
        repository.write(path, path)
    repository.commit("every byte but NUL and the slash")
    repository.write(b":colon", "again")
    repository.commit(":100644 looks like a raw line")


def submodules(repository: Repository) -> None:
    plain(repository)
    first, second = "1" * 40, "2" * 40
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{first},vendor/library")
    repository.git("commit", "--quiet", "-m", "a submodule")
    repository.git("update-index", "--cacheinfo", f"160000,{second},vendor/library")
    repository.git("update-index", "--cacheinfo", f"160000,{first},a")
    repository.git("commit", "--quiet", "-m", "a newer submodule, and a file that becomes one")


def merges(repository: Repository) -> None:
    plain(repository)
    repository.git("checkout", "--quiet", "-b", "side")
    repository.write("side", "1")
    repository.commit("on the side")
    repository.write("a", "from the side\n")
    repository.commit("on the side again")
    repository.git("checkout", "--quiet", "main")
    repository.write("main", "2")
    repository.commit("on main")
    repository.git("merge", "--quiet", "--no-ff", "-m", "merge", "side")


def empty_commits(repository: Repository) -> None:
    repository.commit("a root with no files")
    plain(repository)
    repository.commit("no change")


def ends_empty(repository: Repository) -> None:
    plain(repository)
    repository.git("rm", "--quiet", "-r", ".")
    repository.commit("no files")


def wild_dates(repository: Repository) -> None:
    for number, date in enumerate((START, START - 86_400, 0, 4_102_444_800, 253402300799, START)):
        repository.write("a", str(number))
        repository.commit(f"at {date}", date=date)


def old_modes(repository: Repository) -> None:
    plain(repository)
    blob = bytes.fromhex(repository.git("rev-parse", "HEAD:a"))
    for mode in (b"100664", b"100644", b"100775"):
        tree = repository.git(
            "hash-object", "-t", "tree", "-w", "--stdin", "--literally", stdin=mode + b" a\0" + blob
        )
        commit = repository.git("commit-tree", tree, "-p", "HEAD", "-m", mode)
        repository.git("reset", "--quiet", "--soft", commit)


HISTORIES = [
    *(plain, renames_and_returns, modes, file_becomes_folder, odd_paths, submodules, merges),
    *(empty_commits, ends_empty, wild_dates, old_modes),
]
