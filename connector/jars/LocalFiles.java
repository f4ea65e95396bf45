package io.github.lowmark;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's files of this machine, without the processes that Hadoop starts for them. Without its
 * native library, Hadoop runs chmod for each new file, and readlink four times for each rename: 62
 * processes for a batch of heartbeats and its apply.
 */
public final class LocalFiles extends RawLocalFileSystem {
  private static final Pattern COMMIT = Pattern.compile(".*/_delta_log/\\d{20}\\.json");

  public void setPermission(Path path, FsPermission permission) throws IOException {
    java.nio.file.Path file = pathToFile(path).toPath();
    if (permission.getStickyBit() || !Files.getFileStore(file).supportsFileAttributeView("posix")) {
      super.setPermission(path, permission);
    } else {
      Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permission.toString()));
    }
  }

  /** Hadoop gives readlink the URI of the file, which is no path, and so never finds a link. */
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return getFileStatus(path);
  }

  /**
   * Hadoop looks for the target, and then replaces it. A commit of Delta must not be replaced: a
   * program without Spark may have made it meanwhile. On a disk without links, it can be.
   *
   * The checksum of a commit that was deleted by hand goes: Hadoop would find that the two differ.
   */
  public boolean rename(Path source, Path target) throws IOException {
    java.nio.file.Path from = pathToFile(source).toPath();
    java.nio.file.Path to = pathToFile(target).toPath();
    if (!COMMIT.matcher(to.toString()).matches()) {
      return super.rename(source, target);
    }
    if (!to.toFile().exists()) {
      Files.deleteIfExists(to.resolveSibling("." + to.getFileName() + ".crc"));
    }
    try {
      Files.createLink(to, from);
    } catch (java.nio.file.FileAlreadyExistsException error) {
      throw new FileAlreadyExistsException(target.toString());
    } catch (UnsupportedOperationException error) {
      return super.rename(source, target);
    } catch (FileSystemException error) {
      return super.rename(source, target);
    }
    Files.delete(from);
    return true;
  }

  /** What Hadoop's class FileSystem uses (fs.file.impl). */
  public static final class Checked extends LocalFileSystem {
    public Checked() {
      super(new LocalFiles());
    }
  }

  /** What Hadoop's class FileContext uses (fs.AbstractFileSystem.file.impl). */
  public static final class Context extends ChecksumFs {
    public Context(URI uri, Configuration conf) throws IOException, URISyntaxException {
      super(new Raw(conf));
    }
  }

  static final class Raw extends DelegateToFileSystem {
    Raw(Configuration conf) throws IOException, URISyntaxException {
      super(
          FsConstants.LOCAL_FS_URI,
          new LocalFiles(),
          conf,
          FsConstants.LOCAL_FS_URI.getScheme(),
          false);
    }

    public int getUriDefaultPort() {
      return -1;
    }

    public FsServerDefaults getServerDefaults(Path path) throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    public boolean isValidName(String name) {
      return true;
    }
  }
}
