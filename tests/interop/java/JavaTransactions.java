import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's transactional producer for the interop tests: `JavaTransactions SCENARIO BOOTSTRAP TOPIC ID
 * [ARG]…` runs a scenario and prints the results as JSON.
 */
public final class JavaTransactions {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] args) throws Exception {
        String bootstrap = args[1];
        String topic = args[2];
        String id = args[3];
        Object seen;
        switch (args[0]) {
            case "ends":
                seen = ends(bootstrap, topic, id, Integer.parseInt(args[4]));
                break;
            case "fence":
                seen = fence(bootstrap, topic, id);
                break;
            case "transform":
                seen = transform(bootstrap, topic, id, args[4]);
                break;
            case "time-out":
                seen = timeOut(bootstrap, topic, id, Integer.parseInt(args[4]));
                break;
            default:
                throw new IllegalArgumentException("no such scenario: " + args[0]);
        }
        System.out.println(new ObjectMapper()
            .configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true)
            .writeValueAsString(seen));
    }

    /** `count` transactions of three records each; every third one is aborted. */
    private static Object ends(String bootstrap, String topic, String id, int count) {
        List<String> committed = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, id, 60_000)) {
            producer.initTransactions();
            int partitions = producer.partitionsFor(topic).size();
            for (int n = 0; n < count; n++) {
                producer.beginTransaction();
                List<String> values = new ArrayList<>();
                for (int i = 0; i < 3; i++) {
                    String value = "transaction-" + n + "-" + i;
                    values.add(value);
                    producer.send(new ProducerRecord<>(
                        topic, (n + i) % partitions, null, bytes(value)));
                }
                if (n % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    committed.addAll(values);
                }
            }
        }
        return committed;
    }

    /** A second producer fences the first one during its transaction. */
    private static Object fence(String bootstrap, String topic, String id) {
        Map<String, Object> seen = new TreeMap<>();
        try (KafkaProducer<byte[], byte[]> first = producer(bootstrap, id, 60_000);
             KafkaProducer<byte[], byte[]> second = producer(bootstrap, id, 60_000)) {
            first.initTransactions();
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, bytes("first")));
            first.flush();
            second.initTransactions();
            second.beginTransaction();
            second.send(new ProducerRecord<>(topic, bytes("second")));
            seen.put("first", failure(first::commitTransaction));
            second.commitTransaction();
            seen.put("second", "committed");
        }
        return seen;
    }

    /** Read from `topic`, write to `to`, commit the offsets in the same transaction; abort once. */
    private static Object transform(String bootstrap, String topic, String id, String to) {
        Map<String, Object> seen = new TreeMap<>();
        TopicPartition where = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, id, 60_000);
             KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, topic + "-group")) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<byte[], byte[]>> read = new ArrayList<>();
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (read.size() < 10 && System.nanoTime() < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(read::add);
            }
            seen.put("read", read.size());
            for (String outcome : List.of("aborted", "committed")) {
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : read) {
                    producer.send(new ProducerRecord<>(to, record.key(), record.value()));
                }
                producer.sendOffsetsToTransaction(
                    Map.of(where, new OffsetAndMetadata(read.size(), outcome)),
                    consumer.groupMetadata());
                if (outcome.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
                OffsetAndMetadata found = consumer.committed(Set.of(where)).get(where);
                seen.put(outcome, found == null ? "nothing" : found.offset() + " " + found.metadata());
            }
        }
        return seen;
    }

    /** A transaction that exceeds its timeout, and the next one of the same id. */
    private static Object timeOut(String bootstrap, String topic, String id, int waitMs)
            throws Exception {
        Map<String, Object> seen = new TreeMap<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, id, 1000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, bytes("late")));
            producer.flush();
            Thread.sleep(waitMs);
            seen.put("late", failure(producer::commitTransaction));
        }
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, id, 60_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, bytes("in time")));
            producer.commitTransaction();
            seen.put("next", "committed");
        }
        return seen;
    }

    private static String failure(Runnable action) {
        try {
            action.run();
            return "none";
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(
            String bootstrap, String id, int timeoutMs) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", id);
        config.put("transaction.timeout.ms", timeoutMs);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("isolation.level", "read_committed");
        return new KafkaConsumer<>(
            config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
