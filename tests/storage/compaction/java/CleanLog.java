import java.io.File;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Apache Kafka's own cleaner compacts the partition directory args[0], which was closed cleanly, from
 * offset args[4] up to the active segment, as if it were args[5] (ms). Segments have args[1] bytes, the
 * index an interval of args[2], tombstones stay for args[3] ms.
 */
public class CleanLog {
    public static void main(String[] args) throws Exception {
        LogConfig config = new LogConfig(Map.of(
            "cleanup.policy", "compact", "internal.segment.bytes", args[1],
            "index.interval.bytes", args[2], "delete.retention.ms", args[3],
            "file.delete.delay.ms", "0"));
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            new File(args[0]), config, 0, 0, scheduler, new BrokerTopicStats(false), Time.SYSTEM,
            900_000, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), 600_000,
            new LogDirFailureChannel(1), true, Optional.empty());
        Throttler throttler = new Throttler(
            Double.MAX_VALUE, Long.MAX_VALUE, "none", "entries", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(1 << 20), 1 << 16, 1 << 16, 0.9, throttler, Time.SYSTEM, partition -> { });
        LogToClean cleanable = new LogToClean(
            log, Long.parseLong(args[4]), log.activeSegment().baseOffset(), false);
        long end = cleaner.doClean(cleanable, Long.parseLong(args[5])).getKey();
        System.out.println("end " + end + " segments " + log.numberOfSegments());
        log.close();
        scheduler.shutdown();
    }
}
