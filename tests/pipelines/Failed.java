import java.util.regex.Pattern;

/** Looks through the message of a batch that failed as Spark 4.2 does, in a thread as it begins one. */
public class Failed {
    public static void main(String[] words) throws Exception {
        var error = "Py4JJavaError: An error occurred while calling((.|\\r\\n|\\r|\\n)*)(InterruptedException)";
        var message = "Py4JJavaError: An error occurred while calling o1.save.\n" + "at a.frame(of.java:1)\n".repeat(350);
        var thread = new Thread(() -> System.out.println(Pattern.compile(error).matcher(message).find()));
        thread.start();
        thread.join();
    }
}
