"""How complete and how old a stream is. No I/O."""
