package headwater;

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;

/** What an application does with a cache, by text or binary: PORT TEXT|BINARY; ends with status 0 if all went so. */
public final class Documents {
    private static final int NUMBER = 1000;

    private Documents() {
    }

    public static void main(String[] arguments) throws Exception {
        MemcachedClient cache = new MemcachedClient(
            new ConnectionFactoryBuilder().setProtocol(Protocol.valueOf(arguments[1])).setOpTimeout(60_000).build(),
            List.of(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]))));
        List<Future<Boolean>> stored = new ArrayList<>();
        Map<String, Object> expected = new HashMap<>();
        for (int n = 0; n < NUMBER; n++) {
            stored.add(cache.set("k" + n, 0, "v" + n));
            expected.put("k" + n, "v" + n);
        }
        for (Future<Boolean> each : stored) {
            ok(each.get(60, TimeUnit.SECONDS), "set");
        }
        ok(cache.getBulk(expected.keySet()).equals(expected), "many at once");
        ok(cache.get("nobody") == null && !cache.replace("nobody", 0, "x").get(), "missing");
        ok(!cache.add("k1", 0, "x").get() && cache.add("new", 0, "x").get(), "add");
        CASValue<Object> found = cache.gets("new");
        ok(cache.cas("new", found.getCas(), "y") == CASResponse.OK, "cas");
        ok(cache.cas("new", found.getCas(), "z") == CASResponse.EXISTS, "cas");
        ok(cache.append(0L, "new", "!").get() && cache.prepend(0L, "new", "?").get(), "append");
        ok(cache.get("new").equals("?y!"), "append");
        ok(cache.incr("n", 1, 10, 0) == 10 && cache.incr("n", 7) == 17 && cache.decr("n", 2) == 15, "counter");
        ok(cache.touch("new", 1000).get() && cache.delete("k0").get() && !cache.delete("k0").get(), "delete");
        ok(!cache.getVersions().isEmpty() && cache.getStats().values().iterator().next().containsKey("curr_items"),
            "stats");
        cache.shutdown(60, TimeUnit.SECONDS);
        System.exit(0);
    }

    private static void ok(boolean holds, String name) {
        if (!holds) {
            System.err.println("not so: " + name);
            System.exit(1);
        }
    }
}
