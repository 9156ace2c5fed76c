import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java client for the interop tests: `JavaClient SCENARIO BOOTSTRAP TOPIC [ARG]…` runs a scenario
 * and prints the results as JSON. The test that runs it checks the results.
 */
public final class JavaClient {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] args) throws Exception {
        String bootstrap = args[1];
        String topic = args[2];
        List<String> rest = Arrays.asList(args).subList(3, args.length);
        Object seen;
        switch (args[0]) {
            case "produce":
                seen = produce(bootstrap, topic, rest.get(0), Integer.parseInt(rest.get(1)));
                break;
            case "consume":
                seen = consume(bootstrap, topic, rest.get(0), Integer.parseInt(rest.get(1)));
                break;
            case "rebalance":
                seen = rebalance(bootstrap, topic, rest.get(0), rest.get(1));
                break;
            case "new-group":
                seen = newGroup(bootstrap, topic, rest.get(0));
                break;
            case "new-group-static":
                seen = newGroupStatic(bootstrap, topic, rest.get(0));
                break;
            case "new-group-pattern":
                seen = newGroupPattern(bootstrap, topic, rest.get(0));
                break;
            case "migration":
                seen = migration(bootstrap, topic, rest.get(0));
                break;
            case "offsets":
                seen = offsets(bootstrap, topic);
                break;
            case "admin":
                seen = admin(bootstrap, topic);
                break;
            case "create":
                seen = create(bootstrap, topic, Integer.parseInt(rest.get(0)), rest.subList(1, rest.size()));
                break;
            case "alter-configs":
                seen = alterConfigs(bootstrap, topic, rest);
                break;
            case "read-while-altering":
                seen = readWhileAltering(
                    bootstrap, topic, rest.get(0), Integer.parseInt(rest.get(1)),
                    rest.subList(2, rest.size()));
                break;
            default:
                throw new IllegalArgumentException("no such scenario: " + args[0]);
        }
        System.out.println(new ObjectMapper()
            .configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true)
            .writeValueAsString(seen));
    }

    /** Produces `count` records with keys and a header idempotently; prints partitions and offsets. */
    private static Object produce(String bootstrap, String topic, String codec, int count)
            throws Exception {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.idempotence", true);
        config.put("acks", "all");
        config.put("compression.type", codec);
        config.put("linger.ms", 5);
        List<Map<String, Object>> places = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> pending = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    topic, bytes("key-" + i), i % 10 == 9 ? null : bytes(codec + "-value-" + i));
                record.headers().add("codec", bytes(codec)).add("empty", null);
                pending.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : pending) {
                RecordMetadata place = future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
                places.add(Map.of("partition", place.partition(), "offset", place.offset()));
            }
        }
        return places;
    }

    /** Consumes `count` records in a group, commits and leaves; prints the records. */
    private static Object consume(String bootstrap, String topic, String group, int count) {
        List<Map<String, Object>> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, Map.of(
                "group.id", group, "auto.offset.reset", "earliest"))) {
            consumer.subscribe(List.of(topic));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (records.size() < count && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    records.add(describe(record));
                }
            }
            consumer.commitSync();
        }
        return records;
    }

    private static Map<String, Object> describe(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> row = new HashMap<>();
        row.put("partition", record.partition());
        row.put("offset", record.offset());
        row.put("timestamp", record.timestamp());
        row.put("key", text(record.key()));
        row.put("value", text(record.value()));
        List<List<String>> headers = new ArrayList<>();
        record.headers().forEach(h -> headers.add(Arrays.asList(h.key(), text(h.value()))));
        row.put("headers", headers);
        return row;
    }

    /**
     * Two members join a group one after the other, then the first one leaves; prints the assignments
     * after each step. `strategy` is the assignor's class.
     */
    private static Object rebalance(String bootstrap, String topic, String group, String strategy)
            throws Exception {
        Map<String, Object> config = Map.of("group.id", group,
            "auto.offset.reset", "earliest",
            "partition.assignment.strategy", strategy,
            "heartbeat.interval.ms", 100);
        List<List<Set<Integer>>> steps = new ArrayList<>();
        Set<Integer> revokedFromFirst = new HashSet<>();
        KafkaConsumer<byte[], byte[]> first = consumer(bootstrap, config);
        KafkaConsumer<byte[], byte[]> second = consumer(bootstrap, config);
        try {
            int partitions = first.partitionsFor(topic).size();
            first.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    revoked.forEach(p -> revokedFromFirst.add(p.partition()));
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                }
            });
            settle(partitions, first);
            steps.add(List.of(numbers(first)));
            second.subscribe(List.of(topic));
            settle(partitions, first, second);
            steps.add(List.of(numbers(first), numbers(second)));
            Map<String, Object> seen = new HashMap<>();
            seen.put("revoked_from_first", new HashSet<>(revokedFromFirst));
            first.close();
            settle(partitions, second);
            steps.add(List.of(numbers(second)));
            seen.put("steps", steps);
            return seen;
        } finally {
            first.close();
            second.close();
        }
    }

    private static Map<String, Object> newProtocol(String group) {
        return Map.of("group.id", group, "group.protocol", "consumer",
            "auto.offset.reset", "earliest", "enable.auto.commit", "false");
    }

    /** Three members of the consumer protocol join and two leave; prints the assignments after each step. */
    private static Object newGroup(String bootstrap, String topic, String group) {
        List<List<Set<Integer>>> steps = new ArrayList<>();
        List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();
        try {
            int partitions = 0;
            for (int i = 0; i < 3; i++) {
                members.add(consumer(bootstrap, newProtocol(group)));
                partitions = members.get(0).partitionsFor(topic).size();
                members.get(i).subscribe(List.of(topic));
                steps.add(settled(partitions, members));
            }
            members.get(0).commitSync(Map.of(
                new TopicPartition(topic, steps.get(2).get(0).iterator().next()),
                new OffsetAndMetadata(1, "one")));
            while (members.size() > 1) {
                members.remove(1).close();
                steps.add(settled(partitions, members));
            }
            return steps;
        } finally {
            members.forEach(KafkaConsumer::close);
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static List<Set<Integer>> settled(
            int partitions, List<KafkaConsumer<byte[], byte[]>> members) {
        settle(partitions, members.toArray(new KafkaConsumer[0]));
        List<Set<Integer>> owned = new ArrayList<>();
        members.forEach(member -> owned.add(numbers(member)));
        return owned;
    }

    /** A static member leaves and rejoins; prints the assignments, and whether the other one was rebalanced. */
    private static Object newGroupStatic(String bootstrap, String topic, String group) {
        List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();
        try {
            for (String instance : List.of("one", "two")) {
                members.add(staticMember(bootstrap, group, instance));
            }
            int partitions = members.get(0).partitionsFor(topic).size();
            members.get(0).subscribe(List.of(topic));
            members.get(1).subscribe(List.of(topic));
            List<Set<Integer>> before = settled(partitions, members);
            members.remove(1).close();
            KafkaConsumer<byte[], byte[]> again = staticMember(bootstrap, group, "two");
            members.add(again);
            again.subscribe(List.of(topic));
            List<Set<Integer>> after = settled(partitions, members);
            return Map.of("before", before, "after", after);
        } finally {
            members.forEach(KafkaConsumer::close);
        }
    }

    private static KafkaConsumer<byte[], byte[]> staticMember(
            String bootstrap, String group, String instance) {
        Map<String, Object> config = new HashMap<>(newProtocol(group));
        config.put("group.instance.id", instance);
        return consumer(bootstrap, config);
    }

    /** A member subscribes with an RE2 expression; prints the assigned topics. */
    private static Object newGroupPattern(String bootstrap, String prefix, String group)
            throws Exception {
        Set<String> seen = new HashSet<>();
        try (Admin admin = admin(bootstrap);
             KafkaConsumer<byte[], byte[]> member = consumer(bootstrap, newProtocol(group))) {
            admin.createTopics(List.of(new NewTopic(prefix + "-a", 1, (short) 1),
                new NewTopic(prefix + "-b", 1, (short) 1))).all().get();
            member.subscribe(new SubscriptionPattern(prefix + "-[ab]"));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (seen.size() < 2 && System.nanoTime() < end) {
                member.poll(Duration.ofMillis(50));
                member.assignment().forEach(partition -> seen.add(partition.topic()));
            }
        }
        try (KafkaConsumer<byte[], byte[]> member = consumer(bootstrap, newProtocol(group))) {
            member.subscribe(new SubscriptionPattern("[a-"));
            long end = System.nanoTime() + PATIENCE.toNanos();
            while (System.nanoTime() < end) {
                member.poll(Duration.ofMillis(50));
            }
        } catch (Exception refused) {
            seen.add(refused.getClass().getSimpleName());
        }
        return seen;
    }

    /** A classic member and a member of the consumer protocol join and leave; prints the group types. */
    private static Object migration(String bootstrap, String topic, String group)
            throws Exception {
        Map<String, Object> old = Map.of("group.id", group, "auto.offset.reset", "earliest",
            "heartbeat.interval.ms", 100, "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        List<Object> seen = new ArrayList<>();
        try (Admin admin = admin(bootstrap)) {
            List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();
            try {
                members.add(consumer(bootstrap, old));
                int partitions = members.get(0).partitionsFor(topic).size();
                members.get(0).subscribe(List.of(topic));
                seen.add(settled(partitions, members).size() + kind(admin, group));
                members.add(consumer(bootstrap, newProtocol(group)));
                members.get(1).subscribe(List.of(topic));
                seen.add(settled(partitions, members).size() + kind(admin, group));
                members.remove(1).close();
                seen.add(settled(partitions, members).size() + kind(admin, group));
                members.add(consumer(bootstrap, newProtocol(group)));
                members.get(1).subscribe(List.of(topic));
                seen.add(settled(partitions, members).size() + kind(admin, group));
                members.remove(0).close();
                seen.add(settled(partitions, members).size() + kind(admin, group));
            } finally {
                members.forEach(KafkaConsumer::close);
            }
        }
        return seen;
    }

    private static String kind(Admin admin, String group) throws Exception {
        return " " + admin.describeConsumerGroups(List.of(group)).all().get().get(group).type();
    }

    /** Polls until every member has a partition and all partitions have an owner, twice in succession. */
    @SafeVarargs
    private static void settle(int partitions, KafkaConsumer<byte[], byte[]>... members) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        int calm = 0;
        while (calm < 3) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("the group does not settle");
            }
            Set<Integer> owned = new HashSet<>();
            boolean idle = false;
            int sum = 0;
            for (KafkaConsumer<byte[], byte[]> member : members) {
                member.poll(Duration.ofMillis(50));
                idle |= member.assignment().isEmpty();
                sum += member.assignment().size();
                owned.addAll(numbers(member));
            }
            boolean settled = !idle && sum == partitions && owned.size() == partitions;
            calm = settled ? calm + 1 : 0;
        }
    }

    private static Set<Integer> numbers(KafkaConsumer<byte[], byte[]> member) {
        Set<Integer> numbers = new HashSet<>();
        member.assignment().forEach(p -> numbers.add(p.partition()));
        return numbers;
    }

    /** Offsets of partition 0 for each kind of timestamp. */
    private static Object offsets(String bootstrap, String topic) throws Exception {
        TopicPartition where = new TopicPartition(topic, 0);
        Map<String, Object> seen = new TreeMap<>();
        try (Admin admin = admin(bootstrap)) {
            Map<String, OffsetSpec> specs = Map.of(
                "earliest", OffsetSpec.earliest(),
                "latest", OffsetSpec.latest(),
                "max_timestamp", OffsetSpec.maxTimestamp(),
                "earliest_local", OffsetSpec.earliestLocal(),
                "timestamp_2000", OffsetSpec.forTimestamp(2000),
                "timestamp_9999", OffsetSpec.forTimestamp(9999));
            for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
                var found = admin.listOffsets(Map.of(where, spec.getValue()))
                    .partitionResult(where).get();
                seen.put(spec.getKey(), List.of(found.offset(), found.timestamp()));
            }
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, Map.of())) {
            Map<TopicPartition, OffsetAndTimestamp> found =
                consumer.offsetsForTimes(Map.of(where, 1500L));
            seen.put("consumer_1500",
                List.of(found.get(where).offset(), found.get(where).timestamp()));
        }
        return seen;
    }

    /** Administration of a topic from its creation to its deletion. */
    private static Object admin(String bootstrap, String topic) throws Exception {
        Map<String, Object> seen = new TreeMap<>();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = admin(bootstrap)) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1)
                .configs(Map.of("retention.ms", "86400000")))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            while (!admin.listTopics().names().get().contains(topic)) {
                Thread.sleep(10);
            }
            TopicDescription described = admin.describeTopics(List.of(topic))
                .allTopicNames().get().get(topic);
            seen.put("partitions", described.partitions().size());
            seen.put("topic_id", described.topicId().toString());
            seen.put("replicas", described.partitions().get(0).replicas().size());
            seen.put("by_id", admin.describeTopics(
                    org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(described.topicId())))
                .allTopicIds().get().get(described.topicId()).name());
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("max.message.bytes", "12345"),
                    AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"),
                    AlterConfigOp.OpType.APPEND),
                new AlterConfigOp(new ConfigEntry("retention.ms", null),
                    AlterConfigOp.OpType.DELETE)))).all().get();
            Map<String, Object> configs = new TreeMap<>();
            for (ConfigEntry entry : admin.describeConfigs(List.of(resource))
                    .all().get().get(resource).entries()) {
                if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) {
                    configs.put(entry.name(), entry.value());
                }
            }
            seen.put("configs", configs);
            int node = described.partitions().get(0).leader().id();
            seen.put("cluster_id", admin.describeCluster().clusterId().get());
            seen.put("nodes", admin.describeCluster().nodes().get().size());
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + node);
            seen.put("node_id", admin.describeConfigs(List.of(broker)).all().get()
                .get(broker).get("node.id").value());
            produce(bootstrap, topic, "none", 30);
            seen.put("log_dirs", logDirs(admin, node, topic));
            TopicPartition where = new TopicPartition(topic, 0);
            long end = admin.listOffsets(Map.of(where, OffsetSpec.latest()))
                .partitionResult(where).get().offset();
            seen.put("end", end);
            seen.put("low_watermark", admin.deleteRecords(
                    Map.of(where, RecordsToDelete.beforeOffset(end - 1)))
                .lowWatermarks().get(where).get().lowWatermark());
            groups(admin, topic, seen);
            admin.deleteTopics(List.of(topic)).all().get();
            seen.put("gone", !admin.listTopics().names().get().contains(topic));
        }
        return seen;
    }

    /** Creates a topic with configs (`name=value`), adds a partition; prints leaders, replicas and ISRs. */
    private static Object create(String bootstrap, String topic, int partitions, List<String> settings)
            throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (String setting : settings) {
            String[] parts = setting.split("=", 2);
            configs.put(parts[0], parts[1]);
        }
        try (Admin admin = admin(bootstrap)) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1).configs(configs)))
                .all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(partitions + 1))).all().get();
            List<Object> seen = new ArrayList<>();
            for (TopicPartitionInfo each : admin.describeTopics(List.of(topic))
                    .allTopicNames().get().get(topic).partitions()) {
                seen.add(Map.of(
                    "leader", each.leader().id(),
                    "replicas", each.replicas().size(),
                    "isr", each.isr().size(),
                    "elr", each.elr().size()));
            }
            return seen;
        }
    }

    /** Sets configs of a topic (`name=value`); prints the error, and the topic's own configs. */
    private static Object alterConfigs(String bootstrap, String topic, List<String> settings)
            throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, Object> seen = new TreeMap<>();
        try (Admin admin = admin(bootstrap)) {
            try {
                setConfigs(admin, resource, settings);
                seen.put("error", "");
            } catch (ExecutionException refused) {
                seen.put("error", refused.getCause().getClass().getSimpleName() + ": "
                    + refused.getCause().getMessage());
            }
            Map<String, Object> configs = new TreeMap<>();
            for (ConfigEntry entry : admin.describeConfigs(List.of(resource))
                    .all().get().get(resource).entries()) {
                if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) {
                    configs.put(entry.name(), entry.value());
                }
            }
            seen.put("configs", configs);
        }
        return seen;
    }

    private static void setConfigs(Admin admin, ConfigResource resource, List<String> settings)
            throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        for (String setting : settings) {
            String[] parts = setting.split("=", 2);
            changes.add(new AlterConfigOp(
                new ConfigEntry(parts[0], parts[1]), AlterConfigOp.OpType.SET));
        }
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    }

    /**
     * Reads partition 0 slowly from offset 0, with few bytes in each fetch, and sets configs of the topic
     * after `before` records; prints the records, and the error if there is no reset policy.
     */
    private static Object readWhileAltering(
            String bootstrap, String topic, String reset, int before, List<String> settings)
            throws Exception {
        TopicPartition where = new TopicPartition(topic, 0);
        List<List<Object>> records = new ArrayList<>();
        Map<String, Object> seen = new TreeMap<>();
        seen.put("records", records);
        seen.put("out_of_range", List.of());
        try (Admin admin = admin(bootstrap);
             KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, Map.of(
                "auto.offset.reset", reset, "max.poll.records", 1,
                "max.partition.fetch.bytes", 2000, "fetch.max.bytes", 2000))) {
            consumer.assign(List.of(where));
            consumer.seek(where, 0);
            long end = admin.listOffsets(Map.of(where, OffsetSpec.latest()))
                .partitionResult(where).get().offset();
            long deadline = System.nanoTime() + 2 * PATIENCE.toNanos();
            boolean altered = false;
            while (consumer.position(where) < end && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    records.add(List.of(record.offset(), text(record.value())));
                }
                if (!altered && records.size() >= before) {
                    setConfigs(admin, new ConfigResource(ConfigResource.Type.TOPIC, topic), settings);
                    altered = true;
                }
                Thread.sleep(10);
            }
        } catch (OffsetOutOfRangeException out) {
            seen.put("out_of_range", List.copyOf(out.offsetOutOfRangePartitions().values()));
        }
        return seen;
    }

    private static Object logDirs(Admin admin, int node, String topic) throws Exception {
        Map<String, Object> sizes = new TreeMap<>();
        Map<String, LogDirDescription> found =
            admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        for (Map.Entry<String, LogDirDescription> directory : found.entrySet()) {
            directory.getValue().replicaInfos().forEach((where, replica) -> {
                if (where.topic().equals(topic)) {
                    sizes.put(directory.getKey() + "/" + where, replica.size());
                }
            });
        }
        return Map.of("directories", found.size(), "sizes", sizes);
    }

    private static void groups(Admin admin, String topic, Map<String, Object> seen)
            throws Exception {
        String group = topic + "-group";
        TopicPartition where = new TopicPartition(topic, 1);
        admin.alterConsumerGroupOffsets(group, Map.of(where, new OffsetAndMetadata(7, "seven")))
            .all().get();
        OffsetAndMetadata committed = admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata(group).get().get(where);
        seen.put("committed", List.of(committed.offset(), committed.metadata()));
        seen.put("listed", admin.listGroups().all().get().stream()
            .anyMatch(listing -> listing.groupId().equals(group)));
        admin.deleteConsumerGroupOffsets(group, Set.of(where)).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
        seen.put("group_gone", admin.listGroups().all().get().stream()
            .noneMatch(listing -> listing.groupId().equals(group)));
    }

    private static Admin admin(String bootstrap) {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    private static KafkaConsumer<byte[], byte[]> consumer(
            String bootstrap, Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.auto.commit", false);
        return new KafkaConsumer<>(
            config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }
}
