/* consume: reads a topic from its first offset, as fast as the broker sends it. */
#include "load.h"

#include <stdio.h>
#include <string.h>

#define BATCH 5000
#define WATERMARKS_MS 15000

static rd_kafka_t *open_consumer(const struct options *options)
{
    char error[256];
    rd_kafka_conf_t *conf = new_conf(options);
    set_conf(conf, "group.id", "odradek-load"); /* librdkafka requires one; nothing is committed */
    set_conf(conf, "enable.auto.commit", "false");
    rd_kafka_t *client = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof error);
    if (!client)
        die("%s", error);
    rd_kafka_poll_set_consumer(client);
    return client;
}

/* The first offset of each partition. The request also connects, before the measured part. */
static rd_kafka_topic_partition_list_t *beginnings(rd_kafka_t *client,
                                                   const struct options *options)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(options->partitions);
    for (int partition = 0; partition < options->partitions; partition++) {
        int64_t low, high;
        rd_kafka_resp_err_t error = rd_kafka_query_watermark_offsets(
            client, options->topic, partition, &low, &high, WATERMARKS_MS);
        if (error)
            die("offsets of %s-%d: %s", options->topic, partition, rd_kafka_err2str(error));
        rd_kafka_topic_partition_list_add(list, options->topic, partition)->offset = low;
    }
    return list;
}

int run_consume(const struct options *options)
{
    static rd_kafka_message_t *messages[BATCH];
    struct usage usage;
    long records = 0, failed = 0;
    double bytes = 0;
    char error[256] = "";
    rd_kafka_t *client = open_consumer(options);
    rd_kafka_topic_partition_list_t *assignment = beginnings(client, options);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(client);

    usage_begin(&usage, options);
    double end = now() + options->seconds;
    rd_kafka_assign(client, assignment);
    while (records < options->count && now() < end) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 100, messages, BATCH);
        for (ssize_t i = 0; i < count; i++) {
            if (!messages[i]->err) {
                records++;
                bytes += (double)messages[i]->len;
            } else if (!failed++) {
                snprintf(error, sizeof error, "%s", rd_kafka_err2str(messages[i]->err));
            }
            rd_kafka_message_destroy(messages[i]);
        }
    }
    usage_end(&usage, options);

    printf("{\"records\": %ld, \"bytes\": %.0f, \"failed\": %ld, \"error\": \"%s\"", records, bytes,
           failed, error);
    usage_print(&usage);
    puts("}");
    return 0;
}
