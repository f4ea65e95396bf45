"""Kafka: brokers, topics, readers of streams, the schema registry, and the local broker."""

from __future__ import annotations

from pathlib import Path

from connector.errors import BrokerError, ConfigError, ConnectorError, OutOfRangeError, TopicError

_LOOK_UP = "Look for the error in the documentation of Kafka, and in the logs of the brokers"

_BACKFILL = (
    "Send the missing changes again from the source (a backfill), then start again from the"
    " beginning of the topic"
)


def broker_unreachable(servers: str, cause: str, port: str | None = None) -> BrokerError:
    """`port` is that of a broker on this machine."""
    return BrokerError(
        "BROKER_UNREACHABLE",
        f"No Kafka broker answers at {servers}",
        cause,
        "Check that it runs, and that bootstrap_servers and the security settings of [kafka] are"
        " correct. Start a local broker in the folder of its data",
        bootstrap_servers=servers,
        port=port,
    )


def spark_broker_unreachable(what: str, cause: str) -> BrokerError:
    """`what` is what Spark reads."""
    return BrokerError(
        "BROKER_UNREACHABLE",
        f"Kafka does not answer Spark, which reads {what}",
        cause,
        "Check that the brokers run, and that this machine and those of the executors reach them",
    )


def login_failed(where: str, cause: str) -> BrokerError:
    """`where` is the brokers, or what Spark reads."""
    return BrokerError(
        "KAFKA_LOGIN_FAILED",
        f"Kafka does not accept the login {where}",
        cause,
        "Check sasl.mechanism and the user and password, or the client id, secret and token"
        " endpoint, of [kafka]. Then start this process again. Nothing is lost",
    )


def tls_failed(where: str, cause: str) -> BrokerError:
    """`where` is as in `login_failed`."""
    return BrokerError(
        "KAFKA_TLS_FAILED",
        f"There is no secure connection to Kafka {where}",
        cause,
        "Check security.protocol, ssl.ca.location and the client certificate of [kafka]: their"
        " files, who issued the certificates, and when they expire. Then start this process again."
        " Nothing is lost",
    )


def access_denied(request: str, cause: str, right: str) -> BrokerError:
    return BrokerError(
        "KAFKA_ACCESS_DENIED",
        f"Kafka refused the request: {request}. It needs the right {right}",
        cause,
        "Give this user the rights that docs/howto/run-against-your-cluster.md lists",
    )


def request_refused(request: str, cause: str) -> BrokerError:
    return BrokerError("KAFKA_REFUSED", f"Kafka refused the request: {request}", cause, _LOOK_UP)


def kafka_setting_refused(cause: str) -> ConfigError:
    return ConfigError(
        "SETTING_INVALID",
        "Kafka's client does not accept a setting in [kafka]",
        cause,
        "Correct the setting, or remove it",
    )


def kafka_setting_reserved(setting: str, value: str, allowed: str, reason: str) -> ConfigError:
    return ConfigError(
        "SETTING_INVALID",
        f"kafka.{setting} is {value}, but must be {allowed}",
        reason,
        "Remove this setting",
    )


def topic_missing(topic: str, servers: str) -> TopicError:
    return TopicError(
        "TOPIC_MISSING",
        f"There is no topic {topic}",
        f"Kafka at {servers} does not have it",
        "Check the name of the topic. If it is right, create the topic",
        topic=topic,
    )


def topic_replaced(topic: str, stored_id: str, topic_id: str) -> TopicError:
    return TopicError(
        "TOPIC_REPLACED",
        f"The topic {topic} is not the topic that was read before",
        f"It was deleted and created again: its id was {stored_id} and is {topic_id}",
        "Stored positions are not valid in the new topic. Find out what happened to the old"
        " records, then start again without stored positions",
        topic=topic,
    )


def dead_letter_too_large(topic: str, size: int, remedy_bytes: int) -> TopicError:
    return TopicError(
        "TOPIC_UNSUITABLE",
        f"A dead letter of {size:,} bytes is too large for {topic}",
        "The record that failed is larger than a record of the change topic can be",
        f"Set max.message.bytes={remedy_bytes} on {topic}",
        topic=topic,
    )


def catalog_of_another_topic(topic: str, catalog: str, stored_id: str, topic_id: str) -> TopicError:
    return TopicError(
        "TOPIC_REPLACED",
        f"The catalog {catalog} has write streams of an earlier topic {topic}",
        f"{topic} was deleted and created again: its id was {stored_id} and is {topic_id}. The rows"
        " of these write streams are gone",
        f"Delete {catalog} and create the topics of the stream. Then send the rows again, from the"
        " offset 0",
        topic=topic,
    )


def definition_of_another_table(
    topic: str, table: str, published_id: str, table_id: str
) -> TopicError:
    return TopicError(
        "TABLE_OF_ANOTHER_WAREHOUSE",
        f"{topic} has the definition of another table {table}",
        "Another warehouse has a table of this name, or the table was dropped and made again. The"
        f" id of the other one is {published_id}, and that of this one is {table_id}",
        "Give one of the tables another name. If the other one is gone for good, publish the"
        " definition of this table with take_over",
        topic=topic,
        table=table,
    )


def topic_compacted(topic: str) -> TopicError:
    return TopicError(
        "TOPIC_UNSUITABLE",
        f"The topic {topic} is compacted",
        "Compaction keeps only the newest record of a key. Earlier changes or dead letters of a row"
        " would be lost, with columns that the newest one does not have",
        f"Create another topic, or set cleanup.policy=delete on {topic} before it has records",
        topic=topic,
    )


def topic_not_compacted(topic: str, cleanup_policy: str, kafka_partitions: str) -> TopicError:
    return TopicError(
        "TOPIC_UNSUITABLE",
        f"The topic {topic} cannot be a ledger or a catalog",
        f"It has cleanup.policy={cleanup_policy} and {kafka_partitions} Kafka partitions. It must"
        " have cleanup.policy=compact and one Kafka partition, because it would lose records or"
        " their order otherwise",
        f"Set cleanup.policy=compact on {topic}. If it has several Kafka partitions and no records"
        " of lowmark, delete it and create the topics of the stream",
        topic=topic,
    )


def dead_letter_topic_too_small(
    topic: str, accepted: str, source: str, needed: str, remedy_bytes: str
) -> TopicError:
    return TopicError(
        "TOPIC_UNSUITABLE",
        f"The topic {topic} accepts {accepted} bytes per message, but {source} accepts {needed}",
        "The largest record would not fit with the headers of a dead letter",
        f"Set max.message.bytes={remedy_bytes} on {topic}",
        topic=topic,
    )


def topic_exists(topic: str, differences: str) -> TopicError:
    return TopicError(
        "TOPIC_UNSUITABLE",
        f"The topic {topic} exists with other properties",
        differences,
        "Choose another name, or request the properties that the topic has. If another program"
        " uses the topic, only another name is possible",
        topic=topic,
    )


def record_unreadable(topic: str, offset: str, cause: str) -> TopicError:
    return TopicError(
        "RECORD_UNREADABLE",
        f"Record {offset} of {topic} was not written by lowmark",
        cause,
        "If a newer release of lowmark wrote it, upgrade. Otherwise another program writes to this"
        " topic: only lowmark may do that",
        topic=topic,
    )


def _deleted_unread(whose: str, lost: str, times: str, remedy: str, **fields: object) -> TopicError:
    """`lost` names offsets. `times` says when their records arrived, or is empty."""
    arrived = f". They had arrived{times}" if times else ""
    return TopicError(
        "RECORDS_DELETED",
        f"Kafka deleted records of {whose} before they were read: {lost}",
        f"The retention of the topic, or another program, deleted them{arrived}",
        remedy,
        **fields,
    )


def records_deleted(topic: str, lost: str, times: str) -> TopicError:
    return _deleted_unread(topic, lost, times, _BACKFILL, topic=topic)


def topic_shortened(topic: str, kafka_partition: str, end: str, position: str) -> TopicError:
    return TopicError(
        "RECORDS_DELETED",
        f"{topic} ends before the stored position: Kafka partition {kafka_partition} ends at offset"
        f" {end}, and the position is {position}",
        "The brokers lost records that were read before (an unclean leader election), or the stored"
        " position is wrong",
        _BACKFILL,
        topic=topic,
    )


def group_unavailable(group: str, cause: str) -> BrokerError:
    return BrokerError(
        "GROUP_UNAVAILABLE",
        f"The reader cannot be in the group {group}",
        cause,
        "Give each reader of the group its own group.instance.id, and all of them the same"
        " partition.assignment.strategy, group.protocol and group.remote.assignor, which the"
        " brokers know. Set session.timeout.ms within the limits of the brokers, and"
        " group.max.size of the brokers to the number of readers. Or use another group",
        group=group,
    )


def positions_not_stored(group: str, cause: str) -> BrokerError:
    return BrokerError(
        "POSITIONS_NOT_STORED",
        f"The positions of the group {group} were not stored, or the result is unknown",
        cause,
        "You need not do anything: the reader, or the next one, reads the records after the last"
        " stored positions again. If `poll` is called too seldom, handle fewer records between two"
        " calls, or set max.poll.interval.ms of [kafka] above the longest time that you need",
        group=group,
    )


def reader_state_invalid(cause: str) -> ConfigError:
    return ConfigError(
        "READER_STATE_INVALID",
        "The given bytes are not a state of a reader of whole transactions",
        cause,
        "Pass the bytes that `state` returned, or start without a state",
    )


def group_of_another_reader(group: str, cause: str) -> ConfigError:
    return ConfigError(
        "READER_STATE_INVALID",
        f"The group {group} has stored positions of another kind of reader",
        cause,
        "Use another group. A group belongs to a TransactionConsumer, or to the other consumers",
    )


def arguments_exclude(first: str, other: str, reason: str) -> ConfigError:
    return ConfigError(
        "ARGUMENT_INVALID",
        f"{first} and {other} exclude each other",
        reason,
        f"Leave out {other}",
    )


def start_too_old(where: str, start: str, oldest_shown: str, oldest: int) -> OutOfRangeError:
    return OutOfRangeError(
        "START_TOO_OLD",
        f"{where} may not hold all changes from {start} on",
        "Retention or another program has deleted older records",
        f"Use a start_commit of {oldest_shown} or later, or read the tables",
        oldest=oldest,
    )


def buffer_full(
    waiting: str,
    limit: str,
    cause: str,
    stream_partition: str | None = None,
    kafka_partition: int | None = None,
) -> ConnectorError:
    """The stream partition and the Kafka partition are those that delay the low watermark."""
    return ConnectorError(
        "BUFFER_FULL",
        f"{waiting} bytes of changes wait for the low watermark, and max_buffered_bytes is {limit}",
        cause,
        "Let this stream partition send heartbeats, or close it at the source. Or raise"
        " max_buffered_bytes",
        stream_partition=stream_partition,
        kafka_partition=kafka_partition,
    )


def transactions_unacknowledged(records: str, limit: str) -> ConnectorError:
    return ConnectorError(
        "TRANSACTIONS_UNACKNOWLEDGED",
        f"{records} records were handed out and not acknowledged",
        f"Their positions need more memory than max_buffered_bytes ({limit}) allows",
        "Call acknowledge after each transaction, or raise max_buffered_bytes",
    )


def group_state_too_large(
    topic: str, group: str, state_bytes: str, kafka_partitions: str
) -> ConnectorError:
    return ConnectorError(
        "TRANSACTIONS_UNACKNOWLEDGED",
        f"The state of the reader is too large for the group {group}: it has {state_bytes} bytes",
        f"Kafka stores 4,096 bytes for each of the {kafka_partitions} Kafka partitions. The state"
        " lists the stream partitions, and records that came late or twice since the oldest"
        " unacknowledged one",
        "Acknowledge earlier. Or read without a group, and store the state yourself",
        topic=topic,
    )


def registry_unreachable(url: str, cause: str) -> BrokerError:
    return BrokerError(
        "REGISTRY_UNREACHABLE",
        f"The schema registry at {url} cannot be reached",
        cause,
        "Check that the registry runs and that registry.url is correct, then try again",
    )


def registry_access_denied(url: str, cause: str) -> BrokerError:
    return BrokerError(
        "REGISTRY_ACCESS_DENIED",
        f"The schema registry at {url} refused the request",
        cause,
        "Check registry.user and registry.password, or registry.bearer_token, and the rights on the"
        " subject",
    )


def registry_answer_invalid(url: str, cause: str) -> BrokerError:
    return BrokerError(
        "REGISTRY_ANSWER_INVALID",
        f"The schema registry at {url} gave an answer that is not valid",
        cause,
        "Check registry.url and the registry's log",
    )


def registry_schema_different(url: str, subject: str) -> BrokerError:
    return BrokerError(
        "REGISTRY_SCHEMA_DIFFERENT",
        f"The subject {subject} does not have the schema of lowmark",
        f"The registry at {url} has no such schema under this subject, and auto_register is off",
        "Register schemas/change_record.v1.avsc under the subject, or set"
        " registry.auto_register = true",
    )


def topic_foreign(topic: str, cause: str) -> TopicError:
    return TopicError(
        "TOPIC_FOREIGN",
        f"The newest records of topic {topic} are not those of lowmark",
        cause,
        "Name the topic to which your producers publish changes. Records with the schema of a"
        " registry that [registry] does not name become dead letters, and those of another program,"
        " too: name such a topic in [streams.NAME.source], and let a bridge publish it",
        topic=topic,
    )


def stream_topic_replaced(stream: str, problem: str, cause: str) -> TopicError:
    return TopicError(
        "TOPIC_REPLACED",
        f"The topic of stream {stream} {problem}",
        cause,
        "Restore the topic, or configure a new stream and new tables for the new topic, or move the"
        " folders of the stream and of its tables away",
        stream=stream,
    )


def stream_records_deleted(stream: str, lost: str, times: str) -> TopicError:
    return _deleted_unread(
        f"stream {stream}",
        lost,
        times,
        "Find out which records are missing, and raise the retention. To go on without them, accept"
        " the loss, and send them again. Until you confirm a table, it is no consistent cut",
        stream=stream,
    )


def spark_records_deleted(what: str) -> TopicError:
    return TopicError(
        "RECORDS_DELETED",
        f"Kafka deleted records of {what} before they were read",
        "The retention of the topic deleted them, or Kafka partitions were removed",
        "Find out which records are missing, and send them again to a new stream",
    )


def broker_folder_in_use(folder: Path, pid: int, address: str) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_IN_USE",
        f"A running broker uses the folder {folder}",
        f"Process {pid} serves {address}",
        f"Use this broker: correct bootstrap_servers in your configuration to {address}. For a"
        " second broker, choose another folder. For another port, stop this broker first",
        folder=folder,
    )


def broker_starting(folder: Path) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_IN_USE",
        f"A running broker uses the folder {folder}",
        "Another process is starting a broker",
        "Wait until it has started, and use this broker, or choose another folder",
        folder=folder,
    )


def broker_folder_unusable(folder: Path, cause: str) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_UNUSABLE",
        f"The folder {folder} cannot be that of a broker",
        cause,
        "Choose a new or an empty folder that you can write to, without a comma in its name",
    )


def broker_folder_damaged(folder: Path, cause: str) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_DAMAGED",
        f"The broker folder {folder} is damaged",
        cause,
        "Delete the folder, with all topics in it",
    )


def broker_not_started(folder: Path, problem: str, output: str) -> BrokerError:
    return BrokerError(
        "BROKER_NOT_STARTED",
        f"The broker of {folder} {problem}",
        output,
        "Read the log. If an interrupted start damaged the folder, delete it, with all topics in"
        " it",
        folder=folder,
    )


def broker_not_stopping(folder: Path, process: str) -> BrokerError:
    return BrokerError(
        "BROKER_NOT_STOPPING",
        f"The broker of {folder} does not stop",
        f"Process {process} still runs after SIGKILL",
        "Look at the state of the process, for example with ps",
        folder=folder,
    )


def port_in_use(port: str, host: str) -> BrokerError:
    return BrokerError(
        "PORT_IN_USE",
        f"Port {port} of {host} is in use",
        "Another process listens on it",
        "Stop that process, choose another port, or leave out the port",
        port=port,
    )
