import java.io.File;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Apache Kafka's own log opens the partition directory args[0] as if it had not been closed cleanly,
 * with segments of args[1] bytes and an index interval of args[2], says what it found, and closes it.
 */
public class RecoverLog {
    public static void main(String[] args) throws Exception {
        LogConfig config = new LogConfig(Map.of(
            "internal.segment.bytes", args[1], "index.interval.bytes", args[2], "retention.ms", "-1"));
        boolean clean = args.length > 3 && args[3].equals("clean");
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            new File(args[0]), config, 0, 0, scheduler, new BrokerTopicStats(false), Time.SYSTEM,
            900_000, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), 600_000,
            new LogDirFailureChannel(1), clean, Optional.empty());
        System.out.println("end " + log.logEndOffset());
        System.out.println("epochs " + log.leaderEpochCache().epochEntries());
        System.out.println("producers " + log.producerStateManager().activeProducers().size());
        System.out.println("stable " + log.producerStateManager().firstUnstableOffset().isEmpty());
        log.close();
        scheduler.shutdown();
    }
}
