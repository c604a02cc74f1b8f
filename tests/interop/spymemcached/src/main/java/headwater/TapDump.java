package headwater;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.TapClient;
import net.spy.memcached.tapmessage.ResponseMessage;
import net.spy.memcached.tapmessage.TapOpcode;

/** Dumps a node by TAP and prints "vbucket key flags value" (key and value in base64), a line for each mutation. */
public final class TapDump {
    private TapDump() {
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        TapClient client = new TapClient(List.of(new InetSocketAddress("127.0.0.1", port)));
        client.tapDump("headwater-interop");
        Base64.Encoder base64 = Base64.getEncoder();
        StringBuilder out = new StringBuilder();
        boolean more = true;
        while (more) {
            // Asked before the queue is read: the last message may arrive between its look at the queue and its look at
            // the connection, and then it says "no more" although there is one.
            more = client.hasMoreMessages();
            ResponseMessage message;
            while ((message = client.getNextMessage(more ? 1000 : 10, TimeUnit.MILLISECONDS)) != null) {
                if (message.getOpcode() == TapOpcode.MUTATION) {
                    out.append("item ").append(message.getVbucket()).append(' ')
                        .append(base64.encodeToString(message.getKey().getBytes(StandardCharsets.UTF_8))).append(' ')
                        .append(message.getItemFlags()).append(' ')
                        .append(base64.encodeToString(message.getValue())).append('\n');
                }
            }
        }
        System.out.print(out);
        System.out.println("messages " + client.getMessagesRead());
        client.shutdown();
    }
}
