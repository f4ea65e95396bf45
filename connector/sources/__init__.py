"""Topics that lowmark did not write: what their records say, in which order, and as which changes
(SRC-1, SRC-2).

- A `Decoder`, one for each format, reads a record and returns an event.
- A `Sequencer` releases events in the order of the source, and gives them commit timestamps.

All of it is pure.
"""
