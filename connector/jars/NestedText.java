package io.github.lowmark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import java.io.IOException;
import java.util.ArrayList;
import org.apache.spark.sql.api.java.UDF2;

/**
 * The SQL function that reads the JSON of a value with parts, as connector.tables.nested does. Its
 * first argument is the text, and the second the shape: "." for a part without parts, "[shape]" for
 * a list, "{name:shape,name:shape}" for a record.
 *
 * <p>The result is JSON with the value in the member "v", in which each part without parts is text
 * or null. It is null if the text does not have the shape: Spark's own parser would accept unknown
 * and repeated fields, objects in place of text, and other text behind the value.
 */
public final class NestedText implements UDF2 {
  private static final JsonFactory JSON = new JsonFactory();

  static {
    JSON.disable(JsonFactory.Feature.CANONICALIZE_FIELD_NAMES);
    JSON.setStreamReadConstraints(
        StreamReadConstraints.builder()
            .maxNumberLength(Integer.MAX_VALUE)
            .maxStringLength(Integer.MAX_VALUE)
            .maxNameLength(Integer.MAX_VALUE)
            .build());
  }

  public Object call(Object text, Object shape) throws Exception {
    if (text == null) {
      return null;
    }
    StringBuilder written = new StringBuilder("{\"v\":");
    JsonParser parser = JSON.createParser((String) text);
    try {
      JsonToken first = parser.nextToken();
      boolean isRead =
          first != null
              && first != JsonToken.VALUE_NULL
              && new Shape((String) shape).copy(parser, first, written)
              && parser.nextToken() == null;
      return isRead ? written.append('}').toString() : null;
    } catch (JsonProcessingException error) {
      return null;
    } finally {
      parser.close();
    }
  }

  /** A shape, from its text. */
  private static final class Shape {
    private final String text;
    private int index = 0;
    private final ArrayList names = new ArrayList();
    private final ArrayList parts = new ArrayList();
    private final char kind;

    Shape(String text) {
      this(text, 0);
    }

    private Shape(String text, int start) {
      this.text = text;
      kind = text.charAt(start);
      index = start + 1;
      if (kind == '[') {
        parts.add(part());
        index++;
      } else if (kind == '{') {
        while (text.charAt(index - 1) != '}') {
          int end = text.indexOf(':', index);
          names.add(text.substring(index, end));
          index = end + 1;
          parts.add(part());
          index++;
        }
      }
    }

    private Shape part() {
      Shape part = new Shape(text, index);
      index = part.index;
      return part;
    }

    /** Writes the value that begins with the token. Returns false if it does not have the shape. */
    boolean copy(JsonParser parser, JsonToken token, StringBuilder to) throws IOException {
      if (token == JsonToken.VALUE_NULL) {
        to.append("null");
        return true;
      }
      if (kind == '[') {
        return token == JsonToken.START_ARRAY && copyArray(parser, to);
      }
      if (kind == '{') {
        return token == JsonToken.START_OBJECT && copyObject(parser, to);
      }
      return token.isScalarValue() && write(parser.getText(), to);
    }

    private boolean copyArray(JsonParser parser, StringBuilder to) throws IOException {
      Shape element = (Shape) parts.get(0);
      String before = "[";
      JsonToken token = parser.nextToken();
      while (token != JsonToken.END_ARRAY) {
        to.append(before);
        before = ",";
        if (!element.copy(parser, token, to)) {
          return false;
        }
        token = parser.nextToken();
      }
      to.append(before.equals("[") ? "[]" : "]");
      return true;
    }

    private boolean copyObject(JsonParser parser, StringBuilder to) throws IOException {
      boolean[] isGiven = new boolean[names.size()];
      String before = "{";
      while (parser.nextToken() != JsonToken.END_OBJECT) {
        int field = names.indexOf(parser.getText());
        if (field < 0 || isGiven[field]) {
          return false;
        }
        isGiven[field] = true;
        to.append(before).append('"').append(names.get(field)).append("\":");
        before = ",";
        if (!((Shape) parts.get(field)).copy(parser, parser.nextToken(), to)) {
          return false;
        }
      }
      to.append(before.equals("{") ? "{}" : "}");
      return true;
    }
  }

  /** Writes a text as JSON. Returns false if it cannot be written as UTF-8. */
  private static boolean write(String text, StringBuilder to) {
    to.append('"');
    for (int index = 0; index < text.length(); index++) {
      char letter = text.charAt(index);
      if (Character.isSurrogate(letter)) {
        boolean isPair =
            index + 1 < text.length()
                && Character.isSurrogatePair(letter, text.charAt(index + 1));
        if (!isPair) {
          return false;
        }
        to.append(letter);
        letter = text.charAt(++index);
      } else if (letter == '"' || letter == '\\') {
        to.append('\\');
      } else if (letter < ' ') {
        to.append(letter < 16 ? "\\u000" : "\\u001");
        letter = Character.forDigit(letter & 15, 16);
      }
      to.append(letter);
    }
    to.append('"');
    return true;
  }
}
