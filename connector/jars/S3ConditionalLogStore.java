package io.github.lowmark;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Writes the commits of Delta tables in S3 with a conditional PUT: of two writers of one version,
 * exactly one succeeds, on any machine and after any delay (STO-3).
 *
 * <p>Delta's own class for S3 looks whether the file exists, and then writes it. A writer that is
 * stopped between these two steps replaces the commit of another one.
 */
public final class S3ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String IF_NONE_MATCH = "fs.option.create.conditional.overwrite";

  public S3ConditionalLogStore(Configuration conf) {
    super(conf);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf)
      throws IOException {
    FileSystem files = path.getFileSystem(conf);
    byte[] content = joined(actions);
    FSDataOutputStreamBuilder file = files.createFile(path).overwrite(true);
    if (!overwrite.booleanValue()) {
      file.must(IF_NONE_MATCH, true);
    }
    try {
      OutputStream out = (OutputStream) file.build();
      out.write(content);
      out.close();
    } catch (IOException error) {
      // The client repeats a request whose answer was lost. The second answer is then that the file
      // exists, although the first request has written it. Each commit has an id of its own, so the
      // same bytes are this commit.
      if (overwrite.booleanValue() || !files.exists(path)) {
        throw error;
      }
      if (!Arrays.equals(content, contentOf(files, path))) {
        throw new FileAlreadyExistsException(path.toString());
      }
    }
  }

  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return Boolean.FALSE;
  }

  private static byte[] joined(Iterator actions) throws IOException {
    ByteArrayOutputStream all = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      all.write((((String) actions.next()) + "\n").getBytes(StandardCharsets.UTF_8));
    }
    return all.toByteArray();
  }

  private static byte[] contentOf(FileSystem files, Path path) throws IOException {
    FSDataInputStream in = files.open(path);
    try {
      return in.readAllBytes();
    } finally {
      in.close();
    }
  }
}
