/* produce: writes records as fast as the broker accepts them.
 *
 * Each connection is a producer with a separate thread. It sends RUN records to a partition, then RUN
 * records to the next one. Only failures are reported (delivery.report.only.error), because a report for
 * each record would cost this process more than the record. The count is that of produced records less
 * failed ones, after the last flush. SIGTERM ends the measured part early.
 */
#include "load.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN 200
#define METADATA_MS 5000
#define FLUSH_MS 60000
#define KEY_BYTES 8

struct producer {
    pthread_t thread;
    rd_kafka_t *client;
    rd_kafka_topic_t *topic;
    int partition;
    size_t offset; /* in the text */
    uint64_t random;
    long sent;
    long failed;
    char error[256];
};

static const struct options *options;
static struct text text;
static char *keys; /* KEY_BYTES each */
static pthread_barrier_t together;
static struct usage usage;
static volatile sig_atomic_t stopped; /* by SIGTERM: records in flight are awaited and counted */

static void stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

static void on_failure(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque)
{
    struct producer *producer = opaque;
    (void)client;
    if (message->err && !producer->failed++)
        snprintf(producer->error, sizeof producer->error, "%s", rd_kafka_err2str(message->err));
}

static void open_producer(struct producer *producer)
{
    char error[256];
    rd_kafka_conf_t *conf = new_conf(options);
    set_conf(conf, "delivery.report.only.error", "true");
    rd_kafka_conf_set_dr_msg_cb(conf, on_failure);
    rd_kafka_conf_set_opaque(conf, producer);
    producer->client = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!producer->client)
        die("%s", error);
    producer->topic = rd_kafka_topic_new(producer->client, options->topic, NULL);
    for (int attempt = 0;; attempt++) {
        const struct rd_kafka_metadata *metadata;
        int found = 0;
        if (!rd_kafka_metadata(producer->client, 0, producer->topic, &metadata, METADATA_MS)) {
            found = metadata->topic_cnt == 1 ? metadata->topics[0].partition_cnt : 0;
            rd_kafka_metadata_destroy(metadata);
        }
        if (found >= options->partitions)
            return;
        if (attempt == 50)
            die("topic %s has %d partitions of %d", options->topic, found, options->partitions);
        usleep(100000);
    }
}

/* Produces one run of records to one partition; polls while the queue is full. */
static void send_run(struct producer *producer, int count)
{
    rd_kafka_message_t messages[RUN];
    memset(messages, 0, sizeof messages[0] * (size_t)count);
    for (int i = 0; i < count; i++) {
        messages[i].payload = text.bytes + producer->offset;
        messages[i].len = options->size;
        if (keys) {
            messages[i].key = keys + next_random(&producer->random) % options->keys * KEY_BYTES;
            messages[i].key_len = KEY_BYTES;
        }
        producer->offset = (producer->offset + options->size) % text.length;
    }
    for (int done = 0; done < count;) {
        int taken = rd_kafka_produce_batch(producer->topic, producer->partition, 0,
                                           messages + done, count - done);
        /* With a full queue, the first records are accepted and the others have an error. */
        done += taken;
        if (done < count) {
            if (messages[done].err != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                die("produce: %s", rd_kafka_err2str(messages[done].err));
            rd_kafka_poll(producer->client, 1);
        }
    }
    producer->sent += count;
    producer->partition = (producer->partition + 1) % options->partitions;
    rd_kafka_poll(producer->client, 0);
}

static void send_for(struct producer *producer, double seconds, long count)
{
    double end = now() + seconds;
    while (count > 0 && !stopped && now() < end) {
        int run = count < RUN ? (int)count : RUN;
        send_run(producer, run);
        count -= run;
    }
    if (rd_kafka_flush(producer->client, FLUSH_MS))
        die("%d records are not acknowledged after %d s", rd_kafka_outq_len(producer->client),
            FLUSH_MS / 1000);
}

static void *produce(void *argument)
{
    struct producer *producer = argument;
    open_producer(producer);
    /* At least one record for each partition, so that connections and logs exist. */
    for (int i = 0; i < options->partitions; i++)
        send_run(producer, 1);
    send_for(producer, options->warm_up, options->warm_up > 0 ? options->count : 0);
    producer->sent = 0;
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD)
        usage_begin(&usage, options);
    pthread_barrier_wait(&together);
    send_for(producer, options->seconds, options->count / options->connections);
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD)
        usage_end(&usage, options);
    pthread_barrier_wait(&together);
    return NULL;
}

static char *new_keys(long count)
{
    char *made = malloc((size_t)count * KEY_BYTES + 1);
    if (!made)
        die("no memory for %ld keys", count);
    for (long i = 0; i < count; i++)
        snprintf(made + i * KEY_BYTES, KEY_BYTES + 1, "%08lx", i & 0xffffffff);
    return made;
}

int run_produce(const struct options *given)
{
    options = given;
    signal(SIGTERM, stop);
    text = new_text(options->size);
    keys = options->keys ? new_keys(options->keys) : NULL;
    pthread_barrier_init(&together, NULL, (unsigned)options->connections);
    struct producer *producers = calloc((size_t)options->connections, sizeof *producers);
    long sent = 0, failed = 0;
    const char *error = "";
    for (int i = 0; i < options->connections; i++) {
        producers[i].partition = i % options->partitions;
        producers[i].offset = (size_t)i * 777777 % text.length;
        producers[i].random = (uint64_t)i + 1;
        if (pthread_create(&producers[i].thread, NULL, produce, &producers[i]))
            die("no thread for connection %d", i);
    }
    for (int i = 0; i < options->connections; i++) {
        pthread_join(producers[i].thread, NULL);
        sent += producers[i].sent;
        failed += producers[i].failed;
        if (producers[i].failed)
            error = producers[i].error;
    }
    printf("{\"records\": %ld, \"bytes\": %.0f, \"failed\": %ld, \"error\": \"%s\"", sent - failed,
           (double)(sent - failed) * (double)options->size, failed, error);
    usage_print(&usage);
    puts("}");
    return 0;
}
