"""The demonstration: real changes through a real broker into a table, compared with a truth that none of our code made (OPS-2).

`main` tells the story. `capture` and `bank` make changes, `poison` makes records that must be rejected, `delivery` disorders
them, `truth` says what must come out, `compare` says what differs, `report` tells a person.
"""
