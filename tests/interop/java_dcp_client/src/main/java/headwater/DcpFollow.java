package headwater;

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.config.CompressionMode;
import com.couchbase.client.dcp.config.DcpControl;
import com.couchbase.client.dcp.highlevel.CollectionCreated;
import com.couchbase.client.dcp.highlevel.CollectionDropped;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.DocumentChange;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.TimeUnit;

/** Follows a bucket, or the collection that its second argument names, from the beginning until stdin ends;
 * a line for each event, see tests/interop/follower.py. */
public final class DcpFollow implements DatabaseChangeListener {
    private static final Base64.Encoder BASE64 = Base64.getEncoder();
    private final PrintStream out = new PrintStream(System.out, true);

    public static void main(String[] arguments) throws Exception {
        Client.Builder builder = Client.builder()
                .seedNodes("127.0.0.1:" + arguments[0])
                .bucket("default")
                .credentials("Administrator", "password")
                .flowControl(256 * 1024)
                .controlParam(DcpControl.Names.ENABLE_EXPIRY_OPCODE, true)
                .controlParam(DcpControl.Names.SET_NOOP_INTERVAL, 1)
                // What Couchbase's connectors for Kafka and Elasticsearch ask for.
                .collectionsAware(true)
                .compression(CompressionMode.ENABLED)
                .mitigateRollbacks(100, TimeUnit.MILLISECONDS);
        if (arguments.length > 1) {
            builder.collectionNames(arguments[1]);
        }
        try (Client client = builder.build()) {
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

    private void tell(String event, DocumentChange change, byte[] value) {
        String key = BASE64.encodeToString(change.getKey().getBytes(StandardCharsets.UTF_8));
        out.println(event + ' ' + change.getVbucket() + ' ' + change.getOffset().getSeqno() + ' ' + key + ' '
            + BASE64.encodeToString(value) + ' ' + Long.toHexString(change.getCollection().id()));
    }

    @Override
    public void onCollectionCreated(CollectionCreated made) {
        out.println("collection " + made.getVbucket() + ' ' + Long.toHexString(made.getCollectionId()) + ' '
            + made.getCollectionName());
    }

    @Override
    public void onCollectionDropped(CollectionDropped dropped) {
        out.println("dropped " + dropped.getVbucket() + ' ' + Long.toHexString(dropped.getCollectionId()));
    }

    @Override
    public void onMutation(Mutation change) {
        tell("mutation", change, change.getContent());
    }

    @Override
    public void onDeletion(Deletion change) {
        tell(change.isDueToExpiration() ? "expiration" : "deletion", change, new byte[0]);
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
