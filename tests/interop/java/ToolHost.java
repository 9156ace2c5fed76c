import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, because starting a JVM takes long.
 *
 * A request on stdin consists of the number of words, the words (the main class and its arguments), and
 * the tool's standard input. Words and standard input are a length and bytes. The response on stdout
 * consists of the exit code, the tool's stdout, and its stderr.
 *
 * The classes of a tool are loaded again for each run, so their static fields have their initial values;
 * the client library stays loaded. A tool ends when it returns or calls Kafka's Exit, whose shutdown hooks
 * are then run. Tools that call System.exit need their own JVM.
 */
public final class ToolHost {
    private static final class ExitCalled extends Error {
        ExitCalled() {
            super(null, null, false, false);
        }
    }

    /** Kafka's tools from the child, everything else from the parent. */
    private static final class ToolLoader extends URLClassLoader {
        ToolLoader(URL[] urls, ClassLoader parent) {
            super(urls, parent);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                boolean own = name.startsWith("org.apache.kafka.tools.")
                    || name.startsWith("kafka.admin.") || name.startsWith("kafka.tools.");
                if (own && findLoadedClass(name) == null) {
                    return findClass(name);
                }
                return super.loadClass(name, resolve);
            }
        }
    }

    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static volatile Integer exited;

    public static void main(String[] args) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(new FileOutputStream(FileDescriptor.out));
        Exit.setExitProcedure(ToolHost::exit);
        Exit.setHaltProcedure(ToolHost::exit);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        while (true) {
            int words;
            try {
                words = requests.readInt();
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);  // do not wait for threads of the tools
                return;
            }
            List<String> command = new ArrayList<>();
            for (int i = 0; i < words; i++) {
                command.add(new String(readBytes(requests), StandardCharsets.UTF_8));
            }
            answer(command, readBytes(requests), answers);
        }
    }

    /** The first call determines the exit code, even if the tool catches the exception. */
    private static void exit(int status, String message) {
        if (message != null) {
            System.err.println(message);
        }
        if (exited == null) {
            exited = status;
        }
        System.out.flush();
        System.err.flush();
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        throw new ExitCalled();
    }

    private static void answer(List<String> command, byte[] input, DataOutputStream answers)
            throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(input));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        int status = runTool(command);
        System.out.flush();
        System.err.flush();
        answers.writeInt(status);
        writeBytes(answers, out.toByteArray());
        writeBytes(answers, err.toByteArray());
        answers.flush();
    }

    private static int runTool(List<String> command) {
        HOOKS.clear();
        exited = null;
        Thread thread = Thread.currentThread();
        ClassLoader parent = ToolHost.class.getClassLoader();
        try (ToolLoader loader = new ToolLoader(classpath(), parent)) {
            thread.setContextClassLoader(loader);
            int status = 0;
            try {
                String[] arguments = command.subList(1, command.size()).toArray(new String[0]);
                Class.forName(command.get(0), true, loader)
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
            } catch (InvocationTargetException thrown) {
                if (exited == null) {
                    thrown.getCause().printStackTrace();
                    status = 1;
                }
            }
            for (Runnable hook : List.copyOf(HOOKS)) {
                hook.run();
            }
            return exited == null ? status : exited;
        } catch (Throwable broken) {
            broken.printStackTrace();
            return 1;
        } finally {
            thread.setContextClassLoader(parent);
        }
    }

    private static URL[] classpath() throws IOException {
        List<URL> urls = new ArrayList<>();
        for (String entry : System.getProperty("java.class.path").split(":")) {
            urls.add(Paths.get(entry).toUri().toURL());
        }
        return urls.toArray(new URL[0]);
    }

    private static byte[] readBytes(DataInputStream from) throws IOException {
        byte[] bytes = new byte[from.readInt()];
        from.readFully(bytes);
        return bytes;
    }

    private static void writeBytes(DataOutputStream to, byte[] bytes) throws IOException {
        to.writeInt(bytes.length);
        to.write(bytes);
    }
}
