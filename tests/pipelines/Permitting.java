import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * This machine's files for a node manager that lacks Hadoop's native library, which is on no Maven: without it each file
 * of an archive costs a process of `chmod`, and an environment has fourteen thousand files.
 */
public final class Permitting extends DelegateToFileSystem {
    public Permitting(URI uri, Configuration configuration) throws IOException, URISyntaxException {
        super(uri, new Raw(), configuration, "file", false);
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }

    private static final class Raw extends RawLocalFileSystem {
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            String text = new FsPermission(permission.getUserAction(), permission.getGroupAction(), permission.getOtherAction())
                .toString();
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
        }
    }
}
