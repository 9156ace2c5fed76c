import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's server-side assignors: `Assignors CASES` takes a JSON list of groups and prints the assignment
 * of each member of each group. Topics are numbers, which are the low half of their ids.
 */
public final class Assignors {
    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        List<Object> results = new ArrayList<>();
        for (JsonNode group : mapper.readTree(args[0])) {
            results.add(assign(group));
        }
        System.out.println(mapper.writeValueAsString(results));
    }

    private static Object assign(JsonNode group) {
        Map<Uuid, Integer> counts = new HashMap<>();
        group.get("topics").properties().forEach(topic ->
            counts.put(id(topic.getKey()), topic.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        group.get("members").properties().forEach(entry -> {
            Set<Uuid> topics = new HashSet<>();
            entry.getValue().get("topics").forEach(topic -> topics.add(id(topic.asText())));
            subscriptions.add(topics);
            Map<Uuid, Set<Integer>> assigned = new HashMap<>();
            entry.getValue().get("assigned").properties().forEach(topic -> {
                Set<Integer> partitions = new TreeSet<>();
                topic.getValue().forEach(partition -> {
                    partitions.add(partition.asInt());
                    owners.computeIfAbsent(id(topic.getKey()), __ -> new HashMap<>())
                        .put(partition.asInt(), entry.getKey());
                });
                assigned.put(id(topic.getKey()), partitions);
            });
            members.put(entry.getKey(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), topics,
                new Assignment(Collections.unmodifiableMap(assigned))));
        });
        ConsumerGroupPartitionAssignor assignor = group.get("assignor").asText().equals("range")
            ? new RangeAssignor() : new UniformAssignor();
        SubscriptionType type = subscriptions.size() == 1
            ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        Map<String, Map<String, Set<Integer>>> result = new TreeMap<>();
        assignor.assign(new GroupSpecImpl(members, type, owners), describer(counts)).members()
            .forEach((member, assignment) -> {
                Map<String, Set<Integer>> named = new TreeMap<>();
                assignment.partitions().forEach((topic, partitions) -> named.put(
                    Long.toString(topic.getLeastSignificantBits()), new TreeSet<>(partitions)));
                result.put(member, named);
            });
        return result;
    }

    private static Uuid id(String topic) {
        return new Uuid(0L, Long.parseLong(topic));
    }

    private static SubscribedTopicDescriber describer(Map<Uuid, Integer> counts) {
        return new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topicId) {
                return counts.getOrDefault(topicId, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topicId, int partition) {
                return Set.of();
            }
        };
    }

    private Assignors() {
    }
}
