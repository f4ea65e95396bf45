"""Applying logged changes to Delta tables: `apply` calls the steps, `merge` chooses the way,
`lww_merge` is the rule of `connector.tables.merge` as expressions.
"""
