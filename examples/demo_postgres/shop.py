"""A small shop in PostgreSQL. It remembers the rows after each of its transactions."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from tests.postgres import Postgres, Session

TABLES: Final = ("customers", "accounts", "transfers", "articles", "carts")
SCHEMA: Final = """
CREATE TABLE beat (id int PRIMARY KEY, at timestamptz NOT NULL);
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, email text, bio text);
ALTER TABLE customers REPLICA IDENTITY FULL;
CREATE TABLE accounts (id int PRIMARY KEY,
  customer_id bigint REFERENCES customers ON UPDATE CASCADE, balance numeric(14,2) NOT NULL);
CREATE TABLE transfers (id bigint PRIMARY KEY, source int REFERENCES accounts,
  target int REFERENCES accounts, amount numeric(14,2) NOT NULL, at timestamptz NOT NULL);
CREATE TABLE articles (id int PRIMARY KEY, price numeric(10,2), text text);
ALTER TABLE articles ALTER text SET STORAGE EXTERNAL;
CREATE TABLE carts (customer_id bigint, item text, PRIMARY KEY (customer_id, item));
"""
"""`customers` has REPLICA IDENTITY FULL, because its keys change and its values are large. `carts`
has key columns only.
"""
ACCOUNTS: Final = 8
BALANCE: Final = 1000
LONG: Final = 3000
"""A text of this length is kept outside of its row (TOAST)."""
PAUSE_S: Final = 0.2
_NAMES: Final = ("Ada", "Boaz", "Chloé", "Dai", "Elif", "Fritz")
_ITEMS: Final = ("pen", "a#b", "", "é", "ink")
_STATE: Final = "SELECT json_build_object({})".format(
    ", ".join(f"'{table}', (SELECT json_agg(t) FROM {table} t)" for table in TABLES)
)

Row = frozenset[tuple[str, object]]
"""The columns of a row that are not NULL, with their values. Times are ISO 8601 in UTC."""
State = frozenset[tuple[str, Row]]
"""The rows of all tables, each with the name of its table."""


@dataclass
class Shop:
    """Writes from one thread, so that the order of its transactions is known."""

    server: Postgres
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    states: set[State] = field(default_factory=lambda: {frozenset()})
    newest: State = frozenset()
    done: Counter[str] = field(default_factory=Counter)
    """The number of transactions by kind."""
    _failure: list[BaseException] = field(default_factory=list)
    _next: int = 1000
    _turn: threading.Lock = field(default_factory=threading.Lock)
    """Held from the begin of a transaction until its state is known: no state is missed."""

    def open(self) -> None:
        """Make the tables and the first rows."""
        self.server.run(SCHEMA)
        with self.server.session() as session:
            self._commit(session, self._first_rows())

    @contextmanager
    def working(self) -> Iterator[None]:
        """Write until the end of the block. Raises what the shop has raised."""
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if self._failure:
            raise self._failure[0]

    def _work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self.server.session() as session:
                    # After a kill: the last transaction may have been committed, or not.
                    self._look(session)
                    while not stop.wait(PAUSE_S):
                        self._step(session)
            except (AssertionError, OSError):
                stop.wait(PAUSE_S)  # PostgreSQL was killed
            except BaseException as error:  # noqa: BLE001, it is raised in the other thread
                self._failure.append(error)
                return

    def _step(self, session: Session) -> None:
        kinds: dict[str, tuple[float, Callable[[], Iterator[str]]]] = {
            "transfer over three tables": (10, self._transfer),
            "changed key": (2, self._changed_key),
            "large value not touched": (4, self._untouched),
            "large value": (2, self._large),
            "cart": (6, self._cart),
            "truncate": (0.3, lambda: iter(["TRUNCATE carts"])),
        }
        weights = [weight for weight, _ in kinds.values()]
        (name,) = self.rng.choices(list(kinds), weights)
        self._commit(session, kinds[name][1]())
        self.done[name] += 1

    def add_column(self) -> None:
        """Add `customers.phone`, and fill it, from another connection, as an administrator does."""
        with self.server.session() as session:
            session.run("ALTER TABLE customers ADD COLUMN phone text")
            fill = "UPDATE customers SET phone = 'none' WHERE id < 1000"
            self._commit(session, iter([fill]))

    def _commit(self, session: Session, statements: Iterator[str]) -> None:
        with self._turn:
            session.run("BEGIN")
            for statement in statements:
                session.run(statement)
            session.run("COMMIT")
            self._look(session)

    def _look(self, session: Session) -> None:
        tables = json.loads(session.run(_STATE), parse_float=Decimal)
        self.newest = frozenset((name, row(each)) for name in TABLES for each in tables[name] or ())
        self.states.add(self.newest)

    def _first_rows(self) -> Iterator[str]:
        for number in range(1, ACCOUNTS + 1):
            name, bio = self._name(), _long(number)
            yield f"INSERT INTO customers VALUES ({number}, '{name}', NULL, {bio})"
            yield f"INSERT INTO accounts VALUES ({number}, {number}, {BALANCE})"
            yield f"INSERT INTO articles VALUES ({number}, {number}.50, {_long(number)})"

    def _transfer(self) -> Iterator[str]:
        source, target = self.rng.sample(range(1, ACCOUNTS + 1), 2)
        amount, number = Decimal(self.rng.randrange(1, 5000)) / 100, self._number()
        yield f"UPDATE accounts SET balance = balance - {amount} WHERE id = {source}"
        yield f"UPDATE accounts SET balance = balance + {amount} WHERE id = {target}"
        yield f"INSERT INTO transfers VALUES ({number}, {source}, {target}, {amount}, now())"
        yield f"DELETE FROM transfers WHERE id < {number - 200}"

    def _changed_key(self) -> Iterator[str]:
        account = self.rng.randrange(1, ACCOUNTS + 1)
        yield (
            f"UPDATE customers SET id = {self._number()}"
            f" WHERE id = (SELECT customer_id FROM accounts WHERE id = {account})"
        )

    def _untouched(self) -> Iterator[str]:
        number = self.rng.randrange(1, ACCOUNTS + 1)
        yield f"UPDATE articles SET price = price + 0.01 WHERE id = {number}"
        yield f"UPDATE customers SET email = NULLIF('{self._name()}', 'Ada') WHERE id = {number}"

    def _large(self) -> Iterator[str]:
        number = self.rng.randrange(1, ACCOUNTS + 1)
        yield f"UPDATE articles SET text = {_long(self._number())} WHERE id = {number}"

    def _cart(self) -> Iterator[str]:
        customer, item = self.rng.randrange(9), self.rng.choice(_ITEMS)
        yield f"DELETE FROM carts WHERE customer_id = {self.rng.randrange(9)} AND item = '{item}'"
        yield f"INSERT INTO carts VALUES ({customer}, '{item}') ON CONFLICT DO NOTHING"

    def _name(self) -> str:
        return self.rng.choice(_NAMES)

    def _number(self) -> int:
        self._next += 1
        return self._next


def _long(seed: int) -> str:
    return f"substr(repeat(md5('{seed}'), {LONG // 32 + 1}), 1, {LONG})"


def row(columns: dict[str, object]) -> Row:
    """A row without its NULLs: a column that a table does not have yet is the same as NULL."""
    return frozenset((name, value) for name, value in columns.items() if value is not None)
