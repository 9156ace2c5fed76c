import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Kafka's own codec as a filter: a line in, a line out.
 *
 * message CLASS VERSION HEX   reads a generated message to its last byte; answers with the bytes
 *                             Kafka writes for it and with its JSON.
 * records HEX                 reads and verifies batches; answers with their records as JSON.
 * build CODEC HEX…            builds a batch of these values, each with a key and two headers.
 *
 * What goes wrong is answered with "error" and the exception.
 */
public final class CodecOracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = answer(line.split(" ", -1));
            } catch (Throwable error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                answer = "error " + cause.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "message":
                return message(words[1], Short.parseShort(words[2]), HEX.parseHex(words[3]));
            case "records":
                return records(HEX.parseHex(words[1]));
            case "build":
                return build(CompressionType.forName(words[1]), words);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String message(String name, short version, byte[] bytes) throws Exception {
        Class<?> type = Class.forName(name);
        Message message = (Message) type.getConstructor().newInstance();
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        message.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining()) {
            throw new IllegalStateException(buffer.remaining() + " bytes left over");
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(written), cache, version);
        JsonNode json = (JsonNode) Class.forName(name + "JsonConverter")
            .getMethod("write", type, short.class).invoke(null, message, version);
        return HEX.formatHex(written.array()) + " " + JSON.writeValueAsString(json);
    }

    private static String records(byte[] bytes) throws Exception {
        ArrayNode batches = JSON.createArrayNode();
        MemoryRecords memory = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
        for (MutableRecordBatch batch : memory.batches()) {
            batch.ensureValid();
            ObjectNode shown = batches.addObject();
            shown.put("baseOffset", batch.baseOffset());
            shown.put("lastOffset", batch.lastOffset());
            shown.put("leaderEpoch", batch.partitionLeaderEpoch());
            shown.put("producerId", batch.producerId());
            shown.put("producerEpoch", batch.producerEpoch());
            shown.put("baseSequence", batch.baseSequence());
            shown.put("lastSequence", batch.lastSequence());
            shown.put("maxTimestamp", batch.maxTimestamp());
            shown.put("timestampType", batch.timestampType().id);
            shown.put("compression", batch.compressionType().id);
            shown.put("transactional", batch.isTransactional());
            shown.put("control", batch.isControlBatch());
            ArrayNode records = shown.putArray("records");
            for (Record record : batch) {
                record.ensureValid();
                ArrayNode fields = records.addArray();
                fields.add(record.offset());
                fields.add(record.timestamp());
                fields.add(hex(record.key()));
                fields.add(hex(record.value()));
                ArrayNode headers = fields.addArray();
                for (Header header : record.headers()) {
                    byte[] value = header.value();
                    headers.addArray().add(header.key()).add(value == null ? null : HEX.formatHex(value));
                }
            }
        }
        return JSON.writeValueAsString(batches);
    }

    private static String build(CompressionType type, String[] words) {
        Compression compression = Compression.of(type).build();
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1 << 16), RecordBatch.MAGIC_VALUE_V2, compression,
            TimestampType.CREATE_TIME, 1000L, -1L, 77L, (short) 3, 5, true, false, 9);
        for (int i = 2; i < words.length; i++) {
            Header[] headers = {
                new RecordHeader("none", (byte[]) null),
                new RecordHeader("", new byte[] {(byte) i}),
            };
            builder.append(new SimpleRecord(5000L + i, new byte[] {(byte) i}, HEX.parseHex(words[i]), headers));
        }
        ByteBuffer built = builder.build().buffer();
        byte[] bytes = new byte[built.remaining()];
        built.get(bytes);
        return HEX.formatHex(bytes);
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }
}
