import org.codelibs.opensearch.runner.OpenSearchRunner;

/** A node of OpenSearch, alone, at a port that is free; a second argument is the file that its address goes into. */
public class Start {
    public static void main(String[] words) throws Exception {
        int port;
        try (var free = new java.net.ServerSocket(0, 1, java.net.InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
        var runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> settings.put("http.port", port).put("network.host", "127.0.0.1")
            .put("discovery.type", "single-node").put("path.repo", words[0] + "/snapshots"));
        runner.build(OpenSearchRunner.newConfigs().basePath(words[0]).numOfNode(1).clusterName("headwater"));
        // Not on stdout, which the server takes away.
        var made = java.nio.file.Path.of(words[1] + ".made");
        java.nio.file.Files.writeString(made, "http://127.0.0.1:" + port);
        java.nio.file.Files.move(made, java.nio.file.Path.of(words[1]));
        Thread.currentThread().join();
    }
}
