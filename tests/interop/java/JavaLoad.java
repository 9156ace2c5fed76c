import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * An application that produces and consumes during faults of brokers: `JavaLoad idempotent|transactional
 * BOOTSTRAP TOPIC PARTITIONS NAME KEY_BYTES`.
 *
 * Values are NAME:NUMBER. Each event is a line on stdout: `begin COUNT` (a transaction with the next COUNT
 * numbers), `placed NUMBER PARTITION OFFSET`, `committed`, `aborted` and `unknown` (the last transaction),
 * `failed NUMBER WHY`, and `seen PARTITION OFFSET VALUE` (a record that the member of a group consumed).
 * After a line on stdin, the program stops producing and prints `settled`. It exits at the end of stdin.
 */
public final class JavaLoad {
    private static final int PATIENCE_MS = 120_000;
    private static final int PAUSE_MS = 5;
    private static final int PER_TRANSACTION = 6;
    private static final int ABORT_EVERY = 4;

    private static volatile boolean enough;
    private static volatile boolean over;

    private final String bootstrap;
    private final String topic;
    private final int partitions;
    private final String name;
    private final byte[] key;
    private int sent;

    private JavaLoad(String[] args) {
        bootstrap = args[1];
        topic = args[2];
        partitions = Integer.parseInt(args[3]);
        name = args[4];
        key = new byte[Integer.parseInt(args[5])];
    }

    public static void main(String[] args) throws Exception {
        JavaLoad load = new JavaLoad(args);
        boolean transactional = args[0].equals("transactional");
        Thread reading = new Thread(() -> load.read(transactional ? "consumer" : "classic"));
        reading.start();
        Thread writing = new Thread(() -> {
            if (transactional) {
                load.transact();
            } else {
                load.write();
            }
            tell("settled");
        });
        writing.setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        writing.start();
        BufferedReader stdin = new BufferedReader(new InputStreamReader(System.in));
        while (stdin.readLine() != null) {
            enough = true;
        }
        enough = true;
        over = true;
        writing.join(PATIENCE_MS);
        reading.join(PATIENCE_MS);
    }

    private static synchronized void tell(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private ProducerRecord<byte[], byte[]> next(int partition) {
        sent++;
        byte[] value = (name + ":" + sent).getBytes(StandardCharsets.UTF_8);
        return new ProducerRecord<>(topic, partition, key, value);
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    // Producer

    private void write() {
        try (KafkaProducer<byte[], byte[]> producer = producer(false)) {
            while (!enough) {
                tell("begin 1");
                ProducerRecord<byte[], byte[]> record = next(sent % partitions);
                int number = sent;
                producer.send(record, (where, error) -> {
                    if (error == null) {
                        tell("placed " + number + " " + where.partition() + " " + where.offset());
                    } else {
                        tell("failed " + number + " " + error);
                    }
                });
                pause();
            }
            producer.flush();
        }
    }

    private void transact() {
        KafkaProducer<byte[], byte[]> producer = begun();
        AtomicInteger failures = new AtomicInteger();
        for (int number = 1; !enough; number++) {
            tell("begin " + PER_TRANSACTION);
            int first = sent;
            try {
                producer.beginTransaction();
                for (int each = 0; each < PER_TRANSACTION; each++) {
                    producer.send(next(each % partitions));
                }
                if (number % ABORT_EVERY == 0) {
                    insist(producer::abortTransaction);
                    tell("aborted");
                } else {
                    insist(producer::commitTransaction);
                    tell("committed");
                }
            } catch (KafkaException error) {
                sent = first + PER_TRANSACTION;
                try {
                    insist(producer::abortTransaction);
                    tell("aborted");
                } catch (KafkaException fatal) {
                    System.err.println(failures.incrementAndGet() + ": " + error + ", " + fatal);
                    tell("unknown");
                    producer.close(Duration.ZERO);
                    producer = begun();
                }
            }
            pause();
        }
        producer.close();
    }

    private KafkaProducer<byte[], byte[]> begun() {
        KafkaProducer<byte[], byte[]> producer = producer(true);
        insist(producer::initTransactions);
        return producer;
    }

    /** After a timeout the outcome is unknown, so the same call is repeated. */
    private static void insist(Runnable call) {
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                if (System.currentTimeMillis() > until) {
                    throw late;
                }
            }
        }
    }

    private KafkaProducer<byte[], byte[]> producer(boolean transactional) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        config.put("enable.idempotence", true);
        config.put("linger.ms", 2);
        config.put("request.timeout.ms", 5000);
        config.put("delivery.timeout.ms", PATIENCE_MS);
        config.put("max.block.ms", transactional ? 10_000 : PATIENCE_MS);
        config.put("reconnect.backoff.max.ms", 500);
        config.put("metadata.max.age.ms", 5000);
        if (transactional) {
            config.put("transactional.id", topic);
            config.put("transaction.timeout.ms", 30_000);
        }
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    // Consumer

    private void read(String protocol) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", "watches-" + topic);
        config.put("group.protocol", protocol);
        if (protocol.equals("classic")) {
            config.put("session.timeout.ms", 10_000);
        }
        config.put("auto.offset.reset", "earliest");
        config.put("auto.commit.interval.ms", 500);
        config.put("isolation.level", "read_committed");
        config.put("request.timeout.ms", 5000);
        config.put("reconnect.backoff.max.ms", 500);
        config.put("metadata.max.age.ms", 5000);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!over) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    String value = new String(each.value(), StandardCharsets.UTF_8);
                    tell("seen " + each.partition() + " " + each.offset() + " " + value);
                }
            }
        }
    }
}
