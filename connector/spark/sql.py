"""Parts of Spark SQL: typed columns and keys (TBL-7), frames of known rows (SCL-3), and constants
that keep the generated code the same.

Columns and keys are `connector.tables.values` and `Key.read_key`. A test compares them. An
expression is null for bytes that do not fit, and only for these.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from connector import jars
from connector.errors.spark import spark_without_jars
from connector.jars.store import OWN_JAR
from connector.records.model import MAX_LONG, MAX_TIMESTAMP
from connector.tables.keys import Key, KeyForm
from connector.tables.nested import (
    BASE64_PATTERN,
    ArrayType,
    RangeType,
    RecordType,
    ValueType,
)
from connector.tables.ordered_key import NUMBER_RANGE, number_pattern, write_number
from connector.tables.values import (
    BIGNUMERIC_MAX,
    BIGNUMERIC_MIN,
    CANONICAL_PATTERN,
    MAX_JSON_DEPTH,
    MAX_JSON_DIGITS,
    TEXT_PATTERN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
)

_SPARK_TYPE: Final = {
    DataType.STRING: "string",
    DataType.BYTES: "binary",
    DataType.BOOL: "boolean",
    DataType.INT64: "bigint",
    DataType.FLOAT64: "double",
    DataType.NUMERIC: "decimal(38,9)",
    DataType.BIGNUMERIC: "string",
    DataType.DATE: "date",
    DataType.DATETIME: "timestamp_ntz",
    DataType.TIME: "string",
    DataType.TIMESTAMP: "timestamp",
    DataType.JSON: "string",
}
_NESTED: Final = "lowmark_nested"

_DAY_US: Final = 86_400_000_000
_DAYS: Final = "BETWEEN -719162 AND 2932896"
_MICROS: Final = f"BETWEEN {TIMESTAMP_MIN} AND {TIMESTAMP_MAX}"


def spark_type(type_: ValueType) -> str:
    """The type of a column on disk."""
    match type_:
        case ArrayType():
            return f"array<{spark_type(type_.element)}>"
        case RecordType():
            fields = (f"`{name}`: {spark_type(part)}" for name, part in type_.fields)
            return f"struct<{', '.join(fields)}>"
        case RangeType():
            return spark_type(type_.record)
        case _:
            return _SPARK_TYPE[type_]


def use_nested(spark: SparkSession, types: Iterable[ValueType]) -> None:
    """Give the session the function with which `typed` reads values with parts, if a type needs it.

    Raises `ConnectorError` if Spark runs without the jar of lowmark.
    """
    if all(isinstance(type_, DataType) for type_ in types) or spark.catalog.functionExists(_NESTED):
        return
    jvm: Any = spark._jvm
    made = jvm.io.github.lowmark.NestedText
    if isinstance(made, JavaPackage):
        raise spark_without_jars("lowmark", str(Path(jars.__file__).with_name(OWN_JAR)))
    text = jvm.org.apache.spark.sql.types.DataTypes.StringType
    spark._jsparkSession.udf().register(_NESTED, made(), text)


def typed(type_: ValueType, encoding: Encoding, value: str) -> str:
    """The typed value of the bytes in the SQL expression `value`. It is null if they do not fit.

    For a type with parts, the session needs `use_nested`.
    """
    if type_ is DataType.BYTES:
        return value
    text = f"cast({value} AS string)"
    if not isinstance(type_, DataType):
        return _typed_nested(type_, text)
    if encoding is Encoding.BINARY and type_ is not DataType.STRING:
        return _binary(type_, value)
    return _typed_text(type_, text)


def _typed_text(type_: DataType, text: str) -> str:
    if type_ is DataType.STRING:
        return f"CASE WHEN is_valid_utf8({text}) THEN {text} END"
    if type_ is DataType.JSON:
        return f"CASE WHEN is_valid_utf8({text}) AND {_is_json(text)} THEN {text} END"
    matches = rf"{text} RLIKE r'\A(?:{TEXT_PATTERN[type_]})\z'"
    return f"CASE WHEN {matches} THEN {_text(type_, text)} END"


def _text(type_: DataType, text: str) -> str:
    if type_ is DataType.BOOL:
        return f"{text} = 'true'"
    if type_ is DataType.FLOAT64:
        number = f"try_cast({text} AS double)"
        return (
            f"CASE WHEN NOT abs({number}) = double('Infinity') OR endswith({text}, 'Infinity') THEN"
            f" {number} END"
        )
    if type_ is DataType.NUMERIC:
        # The cast would count zeros at both ends as digits.
        return (
            rf"try_cast(regexp_replace({text}, r'^(-?)0+(?=[0-9])|(?<=\.[0-9]{{1,9}})0+\z', '$1')"
            r" AS decimal(38,9))"
        )
    if type_ is DataType.BIGNUMERIC:
        return _bignumeric(text)
    if type_ is DataType.TIME:
        return f"concat(left({text}, 8), '.', rpad(substring({text}, 10, 6), 6, '0'))"
    if type_ is DataType.TIMESTAMP:
        moment = f"try_cast({text} AS timestamp)"
        return f"CASE WHEN unix_micros({moment}) {_MICROS} THEN {moment} END"
    return f"try_cast({text} AS {_SPARK_TYPE[type_]})"


def _bignumeric(text: str) -> str:
    whole, decimals = "substring_index(ltrim('-', b), '.', 1)", "split_part(b, '.', 2)"
    limits = [limit.lstrip("-").replace(".", "") for limit in (BIGNUMERIC_MIN, BIGNUMERIC_MAX)]
    fits = (
        f"length({whole}) < 39 OR concat({whole}, rpad({decimals}, 38, '0')) <="
        f" CASE WHEN startswith(b, '-') THEN '{limits[0]}' ELSE '{limits[1]}' END"
    )
    shortest = "CASE WHEN contains(b, '.') THEN rtrim('.', rtrim('0', b)) ELSE b END"
    read = f"CASE WHEN {fits} THEN replace(concat({shortest}, '|'), '-0|', '0|') END"
    without_zeros = f"regexp_replace({text}, r'^(-?)0+(?=[0-9])', '$1')"
    return f"rtrim('|', {_with('b', without_zeros, read)})"


def _with(name: str, value: str, result: str) -> str:
    """The expression `result`, in which `name` is `value`, so that this is computed once."""
    return f"get(transform(array({value}), {name} -> {result}), 0)"


def _typed_nested(type_: ValueType, text: str) -> str:
    """A value with parts. lowmark's function makes text of its parts, which are then typed."""
    read = f"{_NESTED}(CASE WHEN is_valid_utf8({text}) THEN {text} END, '{_shape(type_)}')"
    parsed = f"from_json({read}, 'struct<v: {_type_of_texts(type_)}>', {_STRICT_JSON}).v"
    result = f"CASE WHEN NOT {_is_misfit(type_, 'p0', 1)} THEN {_of_texts(type_, 'p0', 1)} END"
    return _with("p0", parsed, result)


def _shape(type_: ValueType) -> str:
    match type_:
        case ArrayType():
            return f"[{_shape(type_.element)}]"
        case RecordType():
            return f"{{{','.join(f'{name}:{_shape(part)}' for name, part in type_.fields)}}}"
        case RangeType():
            return _shape(type_.record)
        case _:
            return "."


def _type_of_texts(type_: ValueType) -> str:
    """The type of a value with text in place of each part without parts."""
    match type_:
        case ArrayType():
            return f"array<{_type_of_texts(type_.element)}>"
        case RecordType():
            fields = (f"`{name}`: {_type_of_texts(part)}" for name, part in type_.fields)
            return f"struct<{', '.join(fields)}>"
        case RangeType():
            return _type_of_texts(type_.record)
        case _:
            return "string"


def _is_misfit(type_: ValueType, part: str, depth: int) -> str:
    """Whether a part that is not null, or a part of it, does not fit its type. It is never null."""
    match type_:
        case ArrayType():
            item = f"p{depth}"
            misfit = _is_misfit(type_.element, item, depth + 1)
            return f"coalesce(exists({part}, {item} -> {misfit}), false)"
        case RecordType():
            fields = (_is_misfit(kind, f"{part}.`{name}`", depth) for name, kind in type_.fields)
            return f"({' OR '.join(fields)})"
        case RangeType():
            start, end = (_of_texts(type_.element, f"{part}.`{side}`", depth) for side in _SIDES)
            return f"({_is_misfit(type_.record, part, depth)} OR coalesce({start} >= {end}, false))"
        case _:
            return f"({part} IS NOT NULL AND {_of_texts(type_, part, depth)} IS NULL)"


def _of_texts(type_: ValueType, part: str, depth: int) -> str:
    """The typed value of a part, from its texts."""
    return _with_each(type_, part, depth, _typed_part)


def _typed_part(type_: DataType, text: str) -> str:
    if type_ is DataType.BYTES:
        fits = rf"length({text}) % 4 = 0 AND {text} RLIKE r'\A(?:{BASE64_PATTERN})\z'"
        return f"CASE WHEN {fits} THEN unbase64({text}) END"
    return _typed_text(type_, text)


def _with_each(
    type_: ValueType, part: str, depth: int, convert: Callable[[DataType, str], str]
) -> str:
    """A part with each part without parts in it converted."""
    match type_:
        case ArrayType():
            item = f"p{depth}"
            converted = _with_each(type_.element, item, depth + 1, convert)
            return f"transform({part}, {item} -> {converted})"
        case RecordType():
            fields = (
                f"'{name}', {_with_each(kind, f'{part}.`{name}`', depth, convert)}"
                for name, kind in type_.fields
            )
            return f"CASE WHEN {part} IS NOT NULL THEN named_struct({', '.join(fields)}) END"
        case RangeType():
            return _with_each(type_.record, part, depth, convert)
        case _:
            return convert(type_, part)


_SIDES: Final = ("start", "end")


def _is_json(text: str) -> str:
    # Spark's parsers stop after the first value and ignore the rest. As the first of two elements,
    # the text must be exactly one value. The second element is random, so that a text cannot
    # contain it.
    parsed = f"""from_json(concat('[', {text}, ',"{_BEHIND}"]'), 'array<string>', {_STRICT_JSON})"""
    return f"coalesce(slice({parsed}, 2, 2) = array('{_BEHIND}'), false)"


_BEHIND: Final = secrets.token_hex(16)
_STRICT_JSON: Final = (
    "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false', 'maxStringLen',"
    f" '2147483647', 'maxNestingDepth', '{MAX_JSON_DEPTH + 1}', 'maxNumLen', '{MAX_JSON_DIGITS}')"
)


def _binary(type_: DataType, value: str) -> str:
    if type_ is DataType.BOOL:
        return f"CASE {value} WHEN X'00' THEN false WHEN X'01' THEN true WHEN X'FF' THEN true END"
    width = 4 if type_ is DataType.DATE else 8
    number = (
        f"CASE WHEN octet_length({value}) = {width} THEN cast(conv(hex({value}), 16, -10) AS"
        " bigint) END"
    )
    if type_ is DataType.INT64:
        return number
    if type_ is DataType.TIMESTAMP:
        return f"CASE WHEN {number} {_MICROS} THEN timestamp_micros({number}) END"
    if type_ is DataType.DATE:
        # conv reads 4 bytes as an unsigned number.
        days = f"({number} - CASE WHEN {number} > 2147483647 THEN 4294967296 ELSE 0 END)"
        return f"CASE WHEN {days} {_DAYS} THEN date_from_unix_date(cast({days} AS int)) END"
    # Spark has no function for the bits of a double. Avro encodes a double as the same 8 bytes in
    # reverse order.
    backwards = (
        "concat("
        + ", ".join(f"substring({value}, {position}, 1)" for position in range(8, 0, -1))
        + ")"
    )
    return (
        f"CASE WHEN octet_length({value}) = 8 THEN from_avro({backwards}, '{json.dumps('double')}',"
        " map('mode', 'FAILFAST')) END"
    )


def written(type_: ValueType, encoding: Encoding, value: str) -> str:
    """The bytes of the typed value in the SQL expression `value`, in one of the forms that `typed`
    reads. It is null for a null.
    """
    if not isinstance(type_, DataType):
        texts = _with_each(type_, value, 1, _written_part)
        text = f"to_json({texts}, map('ignoreNullFields', 'false'))"
        return f"cast({text} AS binary)"
    if type_ in (DataType.BYTES, DataType.STRING, DataType.JSON):
        return f"cast({value} AS binary)"
    if encoding is Encoding.BINARY:
        return _written_binary(type_, value)
    return f"cast({_written_text(type_, value)} AS binary)"


def _written_part(type_: DataType, value: str) -> str:
    """The text of a part without parts: the inverse of `_typed_part`."""
    return f"base64({value})" if type_ is DataType.BYTES else _written_text(type_, value)


def _written_text(type_: DataType, value: str) -> str:
    if type_ is DataType.NUMERIC:
        text = f"cast({value} AS string)"
        # The cast writes an exponent for a number with many zeros behind the point.
        digits = f"lpad(cast(abs(cast(round({value} * 1000000000) AS int)) AS string), 9, '0')"
        small = f"concat(CASE WHEN startswith({text}, '-') THEN '-' ELSE '' END, '0.', {digits})"
        text = f"CASE WHEN contains({text}, 'E') THEN {small} ELSE {text} END"
        return f"rtrim('.', rtrim('0', {text}))"
    if type_ is DataType.DATETIME:
        return f"replace(cast({value} AS string), ' ', 'T')"
    if type_ is DataType.TIMESTAMP:
        # The cast would use the time zone of the session.
        micros = f"unix_micros({value})"
        rest = f"pmod({micros}, 86400000000L)"
        day = f"date_from_unix_date(cast(({micros} - {rest}) div 86400000000L AS int))"
        parts = (
            ("3600000000L", "24L", 2, "T"),
            ("60000000L", "60L", 2, ":"),
            ("1000000L", "60L", 2, ":"),
            ("1L", "1000000L", 6, "."),
        )
        clock = (
            f"'{sign}', lpad(cast(pmod({rest} div {unit}, {limit}) AS string), {width}, '0')"
            for unit, limit, width, sign in parts
        )
        return f"concat(cast({day} AS string), {', '.join(clock)}, 'Z')"
    return f"cast({value} AS string)"


def _written_binary(type_: DataType, value: str) -> str:
    if type_ is DataType.BOOL:
        return f"CASE {value} WHEN true THEN X'FF' WHEN false THEN X'00' END"
    if type_ is DataType.FLOAT64:
        # The 8 bytes of Avro's double in reverse order. Before them is the branch of a union.
        avro = f"substring(to_avro({value}), -8, 8)"
        backwards = (f"substring({avro}, {position}, 1)" for position in range(8, 0, -1))
        return f"CASE WHEN {value} IS NOT NULL THEN concat({', '.join(backwards)}) END"
    number = {DataType.TIMESTAMP: f"unix_micros({value})", DataType.DATE: f"unix_date({value})"}
    width = 8 if type_ is DataType.DATE else 16
    bits = f"cast({number.get(type_, value)} AS bigint)"
    return f"unhex(right(lpad(hex({bits}), 16, '0'), {width}))"


def key_pieces(key: Key, row_key: str) -> str:
    """The expression from which `key_columns` reads `row_key`. Make it a column first."""
    if key.form is KeyForm.ROW_KEY:
        return row_key
    # A split of text would replace bytes that are not UTF-8. Therefore parts are cut from
    # hexadecimal digits, two for each byte.
    spaced = f"regexp_replace(hex({row_key}), r'(..)', '$1 ')"
    if key.form is KeyForm.ORDERED:
        return _ordered_pieces(spaced, len(key.parts))
    delimiter = key.delimiter.encode().hex(" ").upper() + " "
    return f"split(replace(replace({spaced}, '{delimiter}', ','), ' ', ''), ',', -1)"


def key_columns(key: Key, pieces: str) -> list[str]:
    """The key columns in order, from a column with `key_pieces`. A wrong part is null."""
    if key.form is KeyForm.ROW_KEY:
        return [typed(key.parts[0].type, Encoding.TEXT, pieces)]
    if key.form is KeyForm.ORDERED:
        return [_ordered_part(part.type, pieces, index) for index, part in enumerate(key.parts)]
    right_count = f"size({pieces}) = {len(key.parts)}"
    columns = []
    for index, part in enumerate(key.parts):
        piece = f"unhex(get({pieces}, {index}))"
        value = typed(part.type, Encoding.TEXT, piece)
        if part.type in CANONICAL_PATTERN:
            value = (
                rf"CASE WHEN cast({piece} AS string) RLIKE"
                rf" r'\A(?:{CANONICAL_PATTERN[part.type]})\z' THEN {value} END"
            )
        columns.append(f"CASE WHEN {right_count} THEN {value} END")
    return columns


def _ordered_pieces(spaced: str, count: int) -> str:
    """The digits of each part, as `ordered_key.split_parts`. It is null for a wrong key."""
    # A comma separates parts, ~~ is 00 in a part, - is an empty part. Errors are: any other 00, a
    # part without bytes, an empty part at the end, too many parts.
    marked = f"replace(replace({spaced}, '00 01 ', ','), '00 FF ', '~~')"
    marked = f"regexp_replace({marked}, r'(?<![^,])00 00 (?![^,])', '-')"
    wrong = rf"00 |(?<![^,])(?![^,])|,-\z|(?:,[^,]*){{{count}}}"
    return (
        f"CASE WHEN NOT {marked} RLIKE r'{wrong}' THEN split(translate({marked}, '~ -', '0'), ',',"
        " -1) END"
    )


def _ordered_part(type_: DataType, pieces: str, index: int) -> str:
    """`ordered_key.read_part` on hexadecimal digits, which sort as the bytes do."""
    digits = f"get({pieces}, {index})"
    if type_ in NUMBER_RANGE:
        return _ordered_number(type_, digits)
    value = typed(type_, Encoding.TEXT, f"unhex(coalesce({digits}, ''))")
    return f"CASE WHEN {pieces} IS NOT NULL THEN {value} END"


def _ordered_number(type_: DataType, digits: str) -> str:
    if type_ is DataType.BOOL:
        return f"CASE {digits} WHEN '80' THEN false WHEN '81' THEN true END"
    least, greatest = (write_number(limit).hex().upper() for limit in NUMBER_RANGE[type_])
    fits = (
        rf"{digits} RLIKE r'\A(?:{number_pattern(type_)})\z' AND {digits} >= '{least}' AND {digits}"
        rf" <= '{greatest}'"
    )
    if type_ is DataType.NUMERIC:
        return f"CASE WHEN {fits} THEN {_ordered_numeric(digits)} END"
    # The last 7n bits are the number, and their first bit is the sign. The bits before them are
    # shifted out.
    before = f"greatest(64 - shiftright(7 * length({digits}), 1), 0)"
    number = (
        f"shiftright(shiftleft(bigint(conv(right({digits}, 16), 16, -10)), {before}), {before})"
    )
    if type_ is DataType.DATE:
        number = f"date_from_unix_date(int({number}))"
    if type_ is DataType.TIMESTAMP:
        number = f"timestamp_micros({number})"
    return f"CASE WHEN {fits} THEN {number} END"


def _ordered_numeric(digits: str) -> str:
    # Spark has no number of 128 bits. Avro encodes a decimal as its two's complement: 28 says that
    # 20 bytes follow.
    from_0 = _behind("F", digits, "89ABCDE", "0123010")
    below_0 = _behind("0", digits, "1234567", "FEFCDEF")
    number = (
        f"CASE WHEN {digits} >= '8' THEN lpad({from_0}, 40, '0') ELSE lpad({below_0}, 40, 'F') END"
    )
    schema = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9})
    return f"from_avro(unhex(concat('28', {number})), '{schema}', map('mode', 'FAILFAST'))"


def _behind(filled: str, digits: str, first: str, becomes: str) -> str:
    """The digits without those that fill the space before a number, or its first bits."""
    rest = f"ltrim('{filled}', {digits})"
    return f"concat(translate(left({rest}, 1), '{first}', '{becomes}'), substring({rest}, 2))"


def micros(moment: str) -> str:
    """The microseconds of a time without a zone, since the midnight of 1970-01-01."""
    return (
        f"unix_date(cast({moment} AS date)) * {_DAY_US}L + hour({moment}) * 3600000000L +"
        f" minute({moment}) * 60000000L + bigint(extract(SECOND FROM {moment}) * 1000000)"
    )


def literal_rows(spark: SparkSession, rows: Iterable[Sequence[object]], types: str) -> DataFrame:
    """A frame of `rows`, with the columns that `types` declares, such as "name string". With Arrow
    data, they are part of the plan. `createDataFrame` with a list would run Python on executors.
    """
    schema = StructType.fromDDL(types)
    assert isinstance(schema, StructType)
    arrow = to_arrow_schema(schema)
    values = list(zip(*rows, strict=True)) or [()] * len(arrow)
    arrays: Any = [
        pa.array(column, field.type) for column, field in zip(values, arrow, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


def named(names: Iterable[str], values: Iterable[str]) -> str:
    """A struct of values, as SQL. Spark compares structs whose fields have the same names."""
    fields = (f"'{name}', {value}" for name, value in zip(names, values, strict=True))
    return f"named_struct({', '.join(fields)})"


def constant(number: int, integer: str) -> str:
    """A number that differs from batch to batch, in generated code that stays the same, so that the
    JVM reuses it: an array with an index that is not a literal is not part of the code. `integer`
    is any integer column that is never null.
    """
    return f"get(array({number}L), {integer} * 0)"


def skew_us(max_clock_skew_s: int) -> int:
    """The microseconds by which a time may be ahead of its record's arrival.

    A valid time minus this number cannot overflow. Therefore it is subtracted from the time, and
    not added to the arrival, which can be any number.
    """
    return min(max_clock_skew_s * 1_000_000, MAX_LONG - MAX_TIMESTAMP)
