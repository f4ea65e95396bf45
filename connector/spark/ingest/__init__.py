"""From Kafka into the changelog: `ingest` calls the steps, `validate` is the rule of
`connector.validation` as expressions.
"""
