package headwater;

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.config.DcpControl;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.TimeUnit;

/** Follows a bucket from the beginning until stdin ends; a line for each event, see tests/interop/follower.py. */
public final class DcpFollow implements DatabaseChangeListener {
    private static final Base64.Encoder BASE64 = Base64.getEncoder();
    private final PrintStream out = new PrintStream(System.out, true);

    public static void main(String[] arguments) throws Exception {
        try (Client client = Client.builder()
                .seedNodes("127.0.0.1:" + arguments[0])
                .bucket("default")
                .credentials("Administrator", "password")
                .flowControl(256 * 1024)
                .controlParam(DcpControl.Names.ENABLE_EXPIRY_OPCODE, true)
                .controlParam(DcpControl.Names.SET_NOOP_INTERVAL, 1)
                // What Couchbase's connectors for Kafka and Elasticsearch ask for.
                .collectionsAware(true)
                .compression(CompressionMode.ENABLED)
                .mitigateRollbacks(100, TimeUnit.MILLISECONDS)
                .build()) {
            client.listener(new DcpFollow(), FlowControlMode.AUTOMATIC);
            client.connect().block();
            client.initializeState(StreamFrom.BEGINNING, StreamTo.INFINITY).block();
            client.startStreaming().block();
            System.out.println("open " + client.numPartitions());
            while (System.in.read() >= 0) {
                // until the test closes our end
            }
        }
        System.exit(0);
    }

    private void tell(String event, int vbucket, long seqno, String key, byte[] value) {
        String name = BASE64.encodeToString(key.getBytes(StandardCharsets.UTF_8));
        out.println(event + ' ' + vbucket + ' ' + seqno + ' ' + name + ' ' + BASE64.encodeToString(value));
    }

    @Override
    public void onMutation(Mutation change) {
        tell("mutation", change.getVbucket(), change.getOffset().getSeqno(), change.getKey(), change.getContent());
    }

    @Override
    public void onDeletion(Deletion change) {
        String event = change.isDueToExpiration() ? "expiration" : "deletion";
        tell(event, change.getVbucket(), change.getOffset().getSeqno(), change.getKey(), new byte[0]);
    }

    @Override
    public void onRollback(Rollback rollback) {
        out.println("rollback " + rollback.getVbucket() + ' ' + rollback.getSeqno());
        rollback.resume();
    }

    @Override
    public void onStreamEnd(StreamEnd end) {
        out.println("end " + end.getVbucket() + ' ' + end.getReason());
    }

    @Override
    public void onFailure(StreamFailure failure) {
        out.println("failure " + failure.getVbucket() + ' ' + failure.getCause());
    }
}
