/** Placeholder body is filled in below. */
public final class JavaClient {
    public static void main(String[] args) throws Exception {
        throw new IllegalArgumentException("no such scenario");
    }
}
